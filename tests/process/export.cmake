# What a trained module is for: Python opens it.
if(TARGET ddprun AND TARGET ddp-worker)
  ddprun_test(NAME export_module_test LABEL process TIMEOUT 300 SOURCES process/export_module_test.cc LIBS ddprun_launch_harness)
  add_dependencies(export_module_test ddprun ddprun-keeper ddp-worker)
endif()
