# The forward side of an update: weights of losses, autocast, recompute, batch norm over ranks.
if(DDPRUN_WORKER)
  foreach(name forward_test forward_ranks_test recompute_test sync_batch_norm_test)
    ddprun_test(NAME ${name} LABEL unit TIMEOUT 120 SOURCES unit/${name}.cc LIBS ddprun_trainer)
    ddprun_use_torch(${name})
  endforeach()
endif()
