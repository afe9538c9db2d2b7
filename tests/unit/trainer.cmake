# The built-in trainer in one process: models, data, optimizers, checkpoints, whole runs of one rank.
if(DDPRUN_WORKER)
  ddprun_test(NAME model_test LABEL unit TIMEOUT 120 SOURCES unit/model_test.cc LIBS ddprun_trainer)
  ddprun_use_torch(model_test)
  ddprun_test(NAME trainer_data_test LABEL unit TIMEOUT 120 SOURCES unit/trainer_data_test.cc LIBS ddprun_trainer)
  ddprun_use_torch(trainer_data_test)
  ddprun_test(NAME trainer_test LABEL unit TIMEOUT 300
    SOURCES unit/trainer_test.cc unit/trainer_harness.cc unit/client_keeper.cc LIBS ddprun_trainer)
  ddprun_use_torch(trainer_test)
  ddprun_test(NAME trainer_process_test LABEL process TIMEOUT 120
    SOURCES unit/trainer_process_test.cc unit/trainer_harness.cc unit/client_keeper.cc LIBS ddprun_trainer)
  ddprun_use_torch(trainer_process_test)
  add_dependencies(trainer_process_test ddp-worker)
endif()
