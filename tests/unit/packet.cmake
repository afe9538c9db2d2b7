ddprun_test(NAME packet_test LABEL unit SOURCES unit/packet_test.cc LIBS ddprun_base)
