if(DDPRUN_LAUNCHER)
  add_executable(keeper_fake_worker ${CMAKE_SOURCE_DIR}/tests/process/keeper_fake_worker.cc)
  set_target_properties(keeper_fake_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(keeper_fake_worker PRIVATE ddprun_warnings)

  ddprun_test(NAME keeper_test LABEL process TIMEOUT 90 LIBS ddprun_base
    SOURCES process/keeper_test.cc process/keeper_output_test.cc process/keeper_log_test.cc process/keeper_stop_test.cc
      process/keeper_watch_test.cc process/keeper_cpus_test.cc process/keeper_harness.cc)
  add_dependencies(keeper_test ddprun-keeper keeper_fake_worker)
endif()
