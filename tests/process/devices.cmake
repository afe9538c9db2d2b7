# GPUs, CPUs and GPU memory, on a made-up driver that is found through the loader.
if(TARGET ddprun)
  add_library(fake_nvml SHARED ${CMAKE_SOURCE_DIR}/tests/process/fake_nvml.cc)
  set_target_properties(fake_nvml PROPERTIES OUTPUT_NAME nvidia-ml SOVERSION 1
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/fake_nvml)
  target_link_libraries(fake_nvml PRIVATE ddprun_warnings)
  ddprun_test(NAME devices_test LABEL process SOURCES process/devices_test.cc LIBS ddprun_launch_harness TIMEOUT 120)
  target_compile_definitions(devices_test PRIVATE DDPRUN_FAKE_NVML_FOLDER="${CMAKE_BINARY_DIR}/tests/fake_nvml")
  add_dependencies(devices_test ddprun ddprun-keeper fake_nvml)
endif()
