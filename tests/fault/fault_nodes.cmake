# A bounded share of the fault runner (scripts/fault_nodes.py): new seeds each time, printed.
if(TARGET ddp-worker AND TARGET ddprun)
  foreach(trainer builtin fake)
    add_test(NAME faults_on_four_nodes_${trainer}
             COMMAND python3 ${CMAKE_SOURCE_DIR}/scripts/fault_nodes.py --seconds 20 --parallel 2 --trainer ${trainer})
    set_tests_properties(faults_on_four_nodes_${trainer} PROPERTIES LABELS fault TIMEOUT 240
                         ENVIRONMENT "DDPRUN_BIN=${CMAKE_BINARY_DIR}/bin")
  endforeach()
  add_test(NAME kill_host_ends_with_undisturbed_weights
           COMMAND python3 ${CMAKE_SOURCE_DIR}/scripts/soak_kill_host.py --runs 1 --members go)
  set_tests_properties(kill_host_ends_with_undisturbed_weights PROPERTIES LABELS fault TIMEOUT 180
                       ENVIRONMENT "DDPRUN_BIN=${CMAKE_BINARY_DIR}/bin")
endif()
