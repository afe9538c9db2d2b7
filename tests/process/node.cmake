# What a node does with a generation: real keeper and workers, no coordinator.
if(TARGET ddprun_agent)
  add_library(ddprun_node_harness STATIC ${CMAKE_SOURCE_DIR}/tests/process/node_harness.cc)
  target_link_libraries(ddprun_node_harness PUBLIC ddprun_agent ddprun_console PRIVATE ddprun_warnings)
  foreach(subject worker_death hostile_worker health_check node_network keeper_standstill)
    ddprun_test(NAME ${subject}_test LABEL process SOURCES process/${subject}_test.cc LIBS ddprun_node_harness TIMEOUT 120)
    add_dependencies(${subject}_test ddprun-keeper)
  endforeach()
endif()
