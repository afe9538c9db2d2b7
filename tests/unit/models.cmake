# The models of the registry: their rules, and that they are PyTorch's.
if(DDPRUN_WORKER)
  ddprun_test(NAME models_test LABEL unit TIMEOUT 120 SOURCES unit/models_test.cc LIBS ddprun_trainer)
  ddprun_use_torch(models_test)
  ddprun_test(NAME models_python_test LABEL process TIMEOUT 180 SOURCES unit/models_python_test.cc unit/models_files.cc
    LIBS ddprun_trainer)
  ddprun_use_torch(models_python_test)
endif()
