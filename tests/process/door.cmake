# Who is let in: a coordinator in the test's process, and strangers by hand.
if(TARGET ddprun_coordinator)
  add_library(ddprun_door_harness STATIC ${CMAKE_SOURCE_DIR}/tests/process/door_harness.cc)
  target_compile_definitions(ddprun_door_harness PUBLIC DDPRUN_VERSION="${PROJECT_VERSION}")
  target_link_libraries(ddprun_door_harness PUBLIC ddprun_launch_harness ddprun_coordinator ddprun_agent PRIVATE ddprun_warnings)
  ddprun_test(NAME door_test LABEL process SOURCES process/door_test.cc LIBS ddprun_door_harness TIMEOUT 120)
  ddprun_test(NAME tls_test LABEL process SOURCES process/tls_test.cc LIBS ddprun_door_harness TIMEOUT 120)
  ddprun_test(NAME flood_test LABEL process SOURCES process/flood_test.cc LIBS ddprun_door_harness TIMEOUT 180)
  add_dependencies(flood_test ddprun ddprun-keeper)
  foreach(name door_test tls_test flood_test)  # Debian's static protobuf is not position-independent
    target_link_options(${name} PRIVATE -no-pie)
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  endforeach()
endif()
