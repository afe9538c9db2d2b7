# What crosses the network.
if(TARGET ddprun_net)
  ddprun_test(NAME net_secret_test LABEL unit SOURCES unit/net_secret_test.cc LIBS ddprun_net)
endif()
