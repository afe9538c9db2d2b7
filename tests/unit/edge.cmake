# What the trainer does between updates: evaluation, best checkpoint, early end, checks.
if(DDPRUN_WORKER)
  ddprun_test(NAME edge_test LABEL unit TIMEOUT 300
    SOURCES unit/edge_test.cc unit/trainer_harness.cc unit/client_keeper.cc LIBS ddprun_trainer)
  ddprun_use_torch(edge_test)
  ddprun_test(NAME checks_test LABEL unit TIMEOUT 120 SOURCES unit/checks_test.cc LIBS ddprun_trainer)
  ddprun_use_torch(checks_test)
endif()
