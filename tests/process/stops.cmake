# Deaths and stops, end to end.
if(TARGET ddprun)
  ddprun_test(NAME stops_test LABEL process SOURCES process/stops_test.cc LIBS ddprun_launch_harness TIMEOUT 180)
  add_dependencies(stops_test ddprun ddprun-keeper)
endif()
