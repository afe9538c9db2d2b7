# `ddprun logs`: the merge by time, and one rank's log through its rotated files.
if(TARGET ddprun_logs)
  ddprun_test(NAME logs_merge_test LABEL unit SOURCES unit/logs_merge_test.cc LIBS ddprun_logs)
  ddprun_test(NAME logs_stream_test LABEL unit SOURCES unit/logs_stream_test.cc LIBS ddprun_logs ddprun_keeper_core)
endif()
