# What an agent finds out about a dead worker.
if(TARGET ddprun_agent)
  foreach(subject core_dump error_file exchange_fanout exit_hint out_of_memory preparation stop_bound)
    ddprun_test(NAME agent_${subject}_test LABEL unit SOURCES unit/agent_${subject}_test.cc LIBS ddprun_agent)
  endforeach()
endif()
