# ddprun beside PyTorch, in the same run: docs/parity.md.
if(TARGET ddp-worker AND TARGET ddprun AND DDPRUN_PYTHON)
  add_test(NAME parity_test COMMAND ${DDPRUN_PYTHON} ${CMAKE_SOURCE_DIR}/scripts/parity.py --quick --jobs 2)
  add_test(NAME checkpoint_optimizer_test COMMAND ${DDPRUN_PYTHON} ${CMAKE_SOURCE_DIR}/tests/python/checkpoint_optimizer_test.py)
  set_tests_properties(parity_test checkpoint_optimizer_test PROPERTIES LABELS process TIMEOUT 600 PROCESSORS 2
    ENVIRONMENT "DDPRUN_BIN=${CMAKE_BINARY_DIR}/bin;DDPRUN_SOURCE=${CMAKE_SOURCE_DIR};DDPRUN_PYTHON=${DDPRUN_PYTHON}")
endif()
