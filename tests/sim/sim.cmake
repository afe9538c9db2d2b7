# The simulator (R3, L27: any order of leaving and coming back): some hundred seeds that no one has run before (printed; a failing one prints its trace), and the
# simulator's own tests.
if(TARGET ddprun-sim)
  add_test(NAME sim_fresh_seeds COMMAND ddprun-sim --fresh 400)
  set_tests_properties(sim_fresh_seeds PROPERTIES LABELS sim TIMEOUT 120)
  add_test(NAME sim_fresh_leaving COMMAND ddprun-sim --fresh 1000 --membership)
  set_tests_properties(sim_fresh_leaving PROPERTIES LABELS sim TIMEOUT 180)
  ddprun_test(NAME sim_replay_test LABEL sim SOURCES sim/replay_test.cc LIBS ddprun_sim_world)
  add_dependencies(sim_replay_test ddprun-sim)
  ddprun_test(NAME sim_checker_test LABEL sim SOURCES sim/checker_test.cc LIBS ddprun_sim_world)
  ddprun_test(NAME sim_world_test LABEL sim SOURCES sim/world_test.cc LIBS ddprun_sim_world)
endif()
