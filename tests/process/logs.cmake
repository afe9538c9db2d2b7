# Logs end to end, and `ddprun logs`.
if(TARGET ddprun)
  ddprun_test(NAME logs_test LABEL process SOURCES process/logs_test.cc process/launch.cc LIBS ddprun_base TIMEOUT 240)
  target_include_directories(logs_test SYSTEM PRIVATE ${NLOHMANN_INCLUDE})
  add_dependencies(logs_test ddprun ddprun-keeper)
endif()
