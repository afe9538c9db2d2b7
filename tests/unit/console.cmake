if(TARGET ddprun_console)
  ddprun_test(NAME console_test LABEL unit SOURCES unit/console_test.cc LIBS ddprun_console)
endif()
