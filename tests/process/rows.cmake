# Reported troubles (docs/compatibility.md maps each to its tests) that need ddprun as a whole.
# (The harness is made by launch.cmake, which may be read later.)
if(TARGET ddprun)
  add_library(ddprun_rows_program STATIC ${CMAKE_SOURCE_DIR}/tests/process/rows_program.cc)
  target_link_libraries(ddprun_rows_program PUBLIC ddprun_launch_harness PRIVATE ddprun_warnings)
  foreach(subject stops ports reports nodes)
    ddprun_test(NAME rows_${subject}_test LABEL process SOURCES process/rows_${subject}_test.cc
      LIBS ddprun_rows_program ddprun_net TIMEOUT 180)
    add_dependencies(rows_${subject}_test ddprun ddprun-keeper)
  endforeach()
  add_dependencies(rows_reports_test keeper_fake_worker)
  ddprun_test(NAME nodes_test LABEL process SOURCES process/nodes_test.cc LIBS ddprun_rows_program TIMEOUT 300)
  add_dependencies(nodes_test ddprun ddprun-keeper)
endif()
