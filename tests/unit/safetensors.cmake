ddprun_test(NAME safetensors_test LABEL unit SOURCES unit/safetensors_test.cc LIBS ddprun_config)
