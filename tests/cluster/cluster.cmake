# Tests with several nodes, each a network namespace with real processes in it (lab.py). They need root and Python alone,
# and skip themselves with a line elsewhere. One ctest entry per *_test.py.
set(cluster_python ${DDPRUN_PYTHON})
if(NOT cluster_python)
  set(cluster_python python3)
endif()
if(TARGET ddprun)
  file(GLOB cluster_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cluster/*_test.py)
  foreach(test_file IN LISTS cluster_tests)
    get_filename_component(test_name ${test_file} NAME_WE)
    add_test(NAME cluster_${test_name} COMMAND ${cluster_python} ${test_file})
    set_tests_properties(cluster_${test_name} PROPERTIES LABELS cluster TIMEOUT 300
                         ENVIRONMENT "DDPRUN_BIN=${CMAKE_BINARY_DIR}/bin;DDPRUN_SOURCE=${CMAKE_SOURCE_DIR};DDPRUN_PYTHON=${cluster_python}")
  endforeach()
endif()
