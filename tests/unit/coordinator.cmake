# The coordinator's files: commit and choice of checkpoints.
if(TARGET ddprun_coordinator)
  ddprun_test(NAME checkpoint_store_test LABEL unit SOURCES unit/checkpoint_store_test.cc unit/crashing_file_system.cc
    LIBS ddprun_coordinator)
  ddprun_test(NAME run_folder_test LABEL unit SOURCES unit/run_folder_test.cc LIBS ddprun_coordinator)
endif()
