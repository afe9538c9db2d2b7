# The built-in trainer's checks in whole jobs.
if(TARGET ddprun AND TARGET ddp-worker)
  ddprun_test(NAME trainer_checks_test LABEL process TIMEOUT 300
    SOURCES process/trainer_checks_test.cc LIBS ddprun_launch_harness)
  add_dependencies(trainer_checks_test ddprun ddprun-keeper ddp-worker)
  ddprun_test(NAME trainer_data_ranks_test LABEL process TIMEOUT 300
    SOURCES process/trainer_data_ranks_test.cc LIBS ddprun_launch_harness)
  add_dependencies(trainer_data_ranks_test ddprun ddprun-keeper ddp-worker)
endif()
