# Programs that know nothing of ddprun, run by the real PyTorch and Paddle.
if(TARGET ddprun)
  ddprun_test(NAME pytorch_test LABEL process SOURCES process/pytorch_test.cc LIBS ddprun_launch_harness TIMEOUT 900)
  add_dependencies(pytorch_test ddprun ddprun-keeper)
  set_property(TEST pytorch_test APPEND PROPERTY ENVIRONMENT "DDPRUN_PADDLE_PYTHON=${CMAKE_SOURCE_DIR}/.deps/paddle/bin/python")
endif()
