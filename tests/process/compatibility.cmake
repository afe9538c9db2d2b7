# ddprun in torchrun's place. (The harness is made by launch.cmake, which is read later.)
if(TARGET ddprun)
  ddprun_test(NAME torchrun_flags_test LABEL process SOURCES process/torchrun_flags_test.cc LIBS ddprun_launch_harness
              TIMEOUT 120)
  add_dependencies(torchrun_flags_test ddprun ddprun-keeper)
  # Beside the real torchrun, where a Python with torch is configured.
  if(DDPRUN_PYTHON)
    add_test(NAME torchrun_environment_test
      COMMAND ${DDPRUN_PYTHON} ${CMAKE_SOURCE_DIR}/tests/process/torchrun_environment.py)
    set_tests_properties(torchrun_environment_test PROPERTIES LABELS process TIMEOUT 300
      ENVIRONMENT "DDPRUN_BIN=${CMAKE_BINARY_DIR}/bin;DDPRUN_SOURCE=${CMAKE_SOURCE_DIR}")
  endif()
endif()
