# Checkpoints on disk: manifest, and the commands of `ddprun ckpt`.
ddprun_test(NAME checkpoint_manifest_test LABEL unit SOURCES unit/checkpoint_manifest_test.cc LIBS ddprun_checkpoint)
if(TARGET ddprun_ckpt)
  ddprun_test(NAME ckpt_numbers_test LABEL unit SOURCES unit/ckpt_numbers_test.cc LIBS ddprun_ckpt)
  ddprun_test(NAME ckpt_weights_test LABEL unit SOURCES unit/ckpt_weights_test.cc unit/ckpt_folder.cc unit/cli_folder.cc LIBS ddprun_ckpt)
  ddprun_test(NAME ckpt_command_test LABEL unit SOURCES unit/ckpt_command_test.cc unit/ckpt_folder.cc unit/cli_folder.cc unit/cli_process.cc
              LIBS ddprun_ckpt TIMEOUT 120)
  add_dependencies(ckpt_command_test ddprun)
  foreach(test ckpt_numbers_test ckpt_weights_test ckpt_command_test)
    target_link_options(${test} PRIVATE -no-pie)
  endforeach()
endif()
