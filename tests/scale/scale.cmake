# How much a coordinator has to do for thousands of ranks: simulated agents over real connections.
if(DDPRUN_LAUNCHER)
  add_executable(ddprun-swarm ${CMAKE_SOURCE_DIR}/tests/scale/swarm.cc ${CMAKE_SOURCE_DIR}/tests/scale/swarm_main.cc)
  set_target_properties(ddprun-swarm PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_compile_definitions(ddprun-swarm PRIVATE DDPRUN_VERSION="${PROJECT_VERSION}")
  target_link_libraries(ddprun-swarm PRIVATE ddprun_net ddprun_base ddprun_proto ddprun_warnings)

  # A whole generation of 16 simulated agents; no figure is checked.
  add_test(NAME scale_test COMMAND ${DDPRUN_PYTHON} ${CMAKE_SOURCE_DIR}/scripts/bench_scale.py --agents 16)
  set_tests_properties(scale_test PROPERTIES LABELS process TIMEOUT 60
    ENVIRONMENT "DDPRUN_BIN=${CMAKE_BINARY_DIR}/bin;DDPRUN_SOURCE=${CMAKE_SOURCE_DIR}")
endif()
