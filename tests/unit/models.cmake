# The models of the registry: their rules, and that they are PyTorch's.
if(DDPRUN_WORKER)
  ddprun_test(NAME models_test LABEL unit TIMEOUT 120 SOURCES unit/models_test.cc unit/models_files.cc LIBS ddprun_trainer)
  ddprun_use_torch(models_test)
  ddprun_test(NAME models_winograd_test LABEL unit SOURCES unit/models_winograd_test.cc LIBS ddprun_trainer)
  ddprun_use_torch(models_winograd_test)
  ddprun_test(NAME models_example_test LABEL unit SOURCES unit/models_example_test.cc ../examples/my_model/mlp.cc
    LIBS ddprun_trainer)
  ddprun_use_torch(models_example_test)
  ddprun_test(NAME models_python_test LABEL process TIMEOUT 180 SOURCES unit/models_python_test.cc unit/models_files.cc
    LIBS ddprun_trainer)
  ddprun_use_torch(models_python_test)
  ddprun_test(NAME models_script_test LABEL process TIMEOUT 180
    SOURCES unit/models_script_test.cc unit/models_files.cc unit/trainer_harness.cc unit/client_keeper.cc LIBS ddprun_trainer)
  ddprun_use_torch(models_script_test)
endif()
