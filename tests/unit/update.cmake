# The update side of the trainer: schedules, optimizers, clipping, loss scale, averaged weights; checkpoints of them.
if(DDPRUN_WORKER)
  ddprun_test(NAME update_test LABEL unit TIMEOUT 120 SOURCES unit/update_test.cc LIBS ddprun_trainer)
  ddprun_test(NAME update_ranks_test LABEL unit TIMEOUT 120 SOURCES unit/update_ranks_test.cc LIBS ddprun_trainer)
  ddprun_test(NAME update_run_test LABEL unit TIMEOUT 240
    SOURCES unit/update_run_test.cc unit/trainer_harness.cc unit/client_keeper.cc LIBS ddprun_trainer)
  foreach(name update_test update_ranks_test update_run_test)
    ddprun_use_torch(${name})
  endforeach()
endif()
