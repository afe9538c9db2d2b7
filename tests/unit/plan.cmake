# What is known of a training before it starts: ddp-worker's answers, and ddprun asking.
if(TARGET ddprun_remote)
  ddprun_test(NAME worker_question_test LABEL process SOURCES unit/worker_question_test.cc unit/cli_folder.cc unit/cli_process.cc
              LIBS ddprun_remote TIMEOUT 120)
  target_link_options(worker_question_test PRIVATE -no-pie)
  add_dependencies(worker_question_test ddprun ddprun-keeper)
endif()
if(DDPRUN_WORKER)
  ddprun_test(NAME plan_modes_test LABEL unit TIMEOUT 120 SOURCES unit/plan_modes_test.cc unit/trainer_harness.cc unit/client_keeper.cc
              LIBS ddprun_trainer)
  ddprun_use_torch(plan_modes_test)
  ddprun_test(NAME out_of_memory_test LABEL unit SOURCES unit/out_of_memory_test.cc LIBS ddprun_trainer)
  ddprun_use_torch(out_of_memory_test)
endif()
