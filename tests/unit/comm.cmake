# Communicators: Gloo among threads and forked processes of this machine; NCCL only as far as it goes without a GPU.
if(TARGET ddprun_comm)
  ddprun_test(NAME comm_gloo_test LABEL unit SOURCES unit/comm_gloo_test.cc LIBS ddprun_comm ddprun_gloo)
  ddprun_test(NAME comm_shared_test LABEL unit SOURCES unit/comm_shared_test.cc LIBS ddprun_comm ddprun_gloo)
  ddprun_test(NAME comm_failure_test LABEL unit SOURCES unit/comm_failure_test.cc LIBS ddprun_comm ddprun_gloo)
  ddprun_test(NAME comm_reduce_functions_test LABEL unit SOURCES unit/comm_reduce_functions_test.cc LIBS ddprun_comm ddprun_gloo)
  ddprun_test(NAME comm_nccl_test LABEL unit SOURCES unit/comm_nccl_test.cc LIBS ddprun_cuda_host ddprun_comm ddprun_gloo)
  if(TARGET ddp_worker_cuda)
    add_dependencies(comm_nccl_test ddp_worker_cuda)
    ddprun_test(NAME comm_nccl_gpu_test LABEL gpu TIMEOUT 300 SOURCES unit/comm_nccl_gpu_test.cc
                LIBS ddprun_cuda_host ddprun_comm ddprun_gloo ddprun_cuda_libs)
    add_dependencies(comm_nccl_gpu_test ddp_worker_cuda)
  endif()
endif()
