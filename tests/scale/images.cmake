# How many pictures a second the loader prepares: the other half of scripts/bench_images.sh.
if(DDPRUN_WORKER)
  add_executable(image-rate ${CMAKE_SOURCE_DIR}/tests/scale/image_rate.cc)
  set_target_properties(image-rate PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  ddprun_use_torch(image-rate)
  target_link_libraries(image-rate PRIVATE ddprun_trainer ddprun_warnings)
endif()
