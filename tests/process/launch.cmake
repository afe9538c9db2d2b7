# ddprun as a user runs it.
if(TARGET ddprun)
  add_library(ddprun_launch_harness STATIC ${CMAKE_SOURCE_DIR}/tests/process/launch.cc)
  target_include_directories(ddprun_launch_harness SYSTEM PUBLIC ${NLOHMANN_INCLUDE})
  target_link_libraries(ddprun_launch_harness PUBLIC ddprun_base PRIVATE ddprun_warnings)
  ddprun_test(NAME launch_test LABEL process SOURCES process/launch_test.cc LIBS ddprun_launch_harness TIMEOUT 240)
  add_dependencies(launch_test ddprun ddprun-keeper c_trainer)
endif()
