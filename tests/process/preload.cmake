# Workers that are forked from a preloaded interpreter.
if(TARGET ddprun)
  ddprun_test(NAME preload_test LABEL process SOURCES process/preload_test.cc LIBS ddprun_launch_harness TIMEOUT 300)
  add_dependencies(preload_test ddprun ddprun-keeper)
endif()
