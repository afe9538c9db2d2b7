# The configurations in examples/.
if(TARGET ddprun AND TARGET ddp-worker)
  ddprun_test(NAME examples_test LABEL process SOURCES process/examples_test.cc LIBS ddprun_launch_harness ddprun_absl TIMEOUT 900)
  add_dependencies(examples_test ddprun ddprun-keeper ddp-worker)
endif()
