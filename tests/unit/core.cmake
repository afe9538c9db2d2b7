# The cores of coordinator and agent, driven by hand: one scenario a rule.
if(TARGET ddprun_coordinator_core)
  foreach(subject policy codes strikes cause deadlines root_cause generation resume stop checkpoint hang init join membership gate unreachable)
    ddprun_test(NAME core_${subject}_test LABEL unit SOURCES unit/core_${subject}_test.cc unit/core_harness.cc
      LIBS ddprun_coordinator_core)
  endforeach()
  ddprun_test(NAME lease_clock_test LABEL unit SOURCES unit/lease_clock_test.cc LIBS ddprun_agent_core)
  foreach(subject agent agent_leaving)
    ddprun_test(NAME core_${subject}_test LABEL unit SOURCES unit/core_${subject}_test.cc LIBS ddprun_agent_core)
  endforeach()
endif()
