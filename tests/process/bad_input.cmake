# Bad input through the whole of ddprun: said once, clearly, and neither waited for nor tried again.
if(TARGET ddprun AND TARGET ddp-worker)
  ddprun_test(NAME bad_input_test LABEL process TIMEOUT 300 SOURCES process/bad_input_test.cc LIBS ddprun_launch_harness)
  add_dependencies(bad_input_test ddprun ddprun-keeper ddp-worker)
endif()
