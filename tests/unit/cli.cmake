if(TARGET ddprun_cli)
  ddprun_test(NAME cli_options_test LABEL unit SOURCES unit/cli_options_test.cc LIBS ddprun_cli)
  ddprun_test(NAME cli_supervision_options_test LABEL unit SOURCES unit/cli_supervision_options_test.cc
              unit/cli_folder.cc LIBS ddprun_cli)
  ddprun_test(NAME cli_torchrun_test LABEL unit SOURCES unit/cli_torchrun_test.cc unit/cli_folder.cc LIBS ddprun_cli)
  ddprun_test(NAME worker_environment_test LABEL unit SOURCES unit/worker_environment_test.cc
              LIBS ddprun_worker_environment)
  ddprun_test(NAME cli_view_test LABEL unit SOURCES unit/cli_view_test.cc LIBS ddprun_cli)
  ddprun_test(NAME cli_preflight_test LABEL unit SOURCES unit/cli_preflight_test.cc
              unit/cli_folder.cc LIBS ddprun_cli)
  ddprun_test(NAME cli_binary_test LABEL unit SOURCES unit/cli_binary_test.cc unit/cli_folder.cc unit/cli_process.cc
              LIBS ddprun_cli)
  ddprun_test(NAME cli_signals_test LABEL process SOURCES unit/cli_signals_test.cc unit/cli_folder.cc
              unit/cli_process.cc LIBS ddprun_cli)
  ddprun_test(NAME cli_slurm_test LABEL unit SOURCES unit/cli_slurm_test.cc unit/cli_folder.cc LIBS ddprun_cli)
  ddprun_test(NAME cli_retention_test LABEL unit SOURCES unit/cli_retention_test.cc unit/cli_folder.cc LIBS ddprun_cli)
  ddprun_test(NAME cli_cluster_test LABEL unit SOURCES unit/cli_cluster_test.cc LIBS ddprun_cli)
  ddprun_test(NAME preload_choice_test LABEL unit SOURCES unit/preload_choice_test.cc LIBS ddprun_cli ddprun_agent)
  ddprun_test(NAME cli_hosts_test LABEL unit SOURCES unit/cli_hosts_test.cc LIBS ddprun_remote)
  foreach(test cli_hosts_test cli_slurm_test preload_choice_test cli_options_test cli_supervision_options_test cli_torchrun_test worker_environment_test cli_view_test
          cli_preflight_test cli_binary_test cli_signals_test cli_retention_test cli_cluster_test)
    target_link_options(${test} PRIVATE -no-pie)
  endforeach()
  foreach(test cli_binary_test cli_signals_test)
    add_dependencies(${test} ddprun ddprun-keeper)
  endforeach()
endif()
