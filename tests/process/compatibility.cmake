# ddprun beside the real torchrun, where a Python with torch is configured.
if(TARGET ddprun AND DDPRUN_PYTHON)
  add_test(NAME torchrun_environment_test
    COMMAND ${DDPRUN_PYTHON} ${CMAKE_SOURCE_DIR}/tests/process/torchrun_environment.py)
  set_tests_properties(torchrun_environment_test PROPERTIES LABELS process TIMEOUT 300
    ENVIRONMENT "DDPRUN_BIN=${CMAKE_BINARY_DIR}/bin;DDPRUN_SOURCE=${CMAKE_SOURCE_DIR}")
endif()
