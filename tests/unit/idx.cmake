ddprun_test(NAME idx_test LABEL unit SOURCES unit/idx_test.cc LIBS ddprun_config)
