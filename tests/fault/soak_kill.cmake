# One bounded run for each kind of kill (scripts/soak_kill.py has the long form): the job must end with the weights of an
# undisturbed run. Requirement rows C1, C9.
if(TARGET ddp-worker AND TARGET ddprun)
  foreach(kind worker rank0 two checkpoint start keeper launcher)
    add_test(NAME kill_${kind}_ends_with_undisturbed_weights
             COMMAND python3 ${CMAKE_SOURCE_DIR}/scripts/soak_kill.py --runs 1 --kinds ${kind}
                     --set train.steps=60 --set checkpoint.every_steps=10)
    set_tests_properties(kill_${kind}_ends_with_undisturbed_weights PROPERTIES LABELS fault TIMEOUT 180
                         ENVIRONMENT "DDPRUN_BIN=${CMAKE_BINARY_DIR}/bin")
  endforeach()
endif()
