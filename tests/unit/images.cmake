# Pictures: files, decoding, cutting, scaling. What they are compared with is made by tests/data/images/make_images.py.
if(DDPRUN_WORKER)
  ddprun_test(NAME images_decode_test LABEL unit SOURCES unit/images_decode_test.cc unit/images_data.cc
    LIBS ddprun_images ${JPEG_STATIC} ${ZLIB_STATIC})
  ddprun_test(NAME images_scale_test LABEL unit SOURCES unit/images_scale_test.cc unit/images_data.cc
    LIBS ddprun_images ${ZLIB_STATIC})
  ddprun_test(NAME images_folder_test LABEL unit SOURCES unit/images_folder_test.cc unit/images_data.cc
    LIBS ddprun_images ${ZLIB_STATIC})
  ddprun_test(NAME images_training_test LABEL unit TIMEOUT 300
    SOURCES unit/images_training_test.cc unit/images_data.cc unit/trainer_harness.cc unit/client_keeper.cc
    LIBS ddprun_trainer ${ZLIB_STATIC})
  ddprun_use_torch(images_training_test)
endif()
