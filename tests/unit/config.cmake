ddprun_test(NAME config_test LABEL unit SOURCES unit/config_test.cc unit/config_overrides_test.cc LIBS ddprun_config)
