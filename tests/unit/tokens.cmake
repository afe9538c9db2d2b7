# `ddprun tokens`.
if(TARGET ddprun_cli)
  ddprun_test(NAME tokens_test LABEL unit SOURCES unit/tokens_test.cc LIBS ddprun_cli)
endif()
