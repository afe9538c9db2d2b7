# The data of the trainer: kinds, loader, the way to a device.
if(DDPRUN_WORKER)
  ddprun_test(NAME data_kinds_test LABEL unit SOURCES unit/data_kinds_test.cc LIBS ddprun_trainer)
  ddprun_use_torch(data_kinds_test)
  ddprun_test(NAME data_tokens_test LABEL unit SOURCES unit/data_tokens_test.cc LIBS ddprun_trainer)
  ddprun_use_torch(data_tokens_test)
  ddprun_test(NAME data_loader_test LABEL unit SOURCES unit/data_loader_test.cc LIBS ddprun_trainer)
  ddprun_use_torch(data_loader_test)
  ddprun_test(NAME data_announced_test LABEL unit SOURCES unit/data_announced_test.cc LIBS ddprun_trainer)
  ddprun_use_torch(data_announced_test)
  ddprun_test(NAME data_training_test LABEL unit TIMEOUT 300
    SOURCES unit/data_training_test.cc unit/trainer_harness.cc unit/client_keeper.cc LIBS ddprun_trainer)
  ddprun_use_torch(data_training_test)
endif()
