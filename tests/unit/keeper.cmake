if(DDPRUN_LAUNCHER)
  ddprun_test(NAME keeper_policy_test LABEL unit SOURCES unit/keeper_policy_test.cc LIBS ddprun_keeper_core)
  ddprun_test(NAME keeper_parts_test LABEL unit SOURCES unit/keeper_parts_test.cc LIBS ddprun_keeper_core)
endif()
