if(TARGET ddprun_reducer)
# The gradient reducer with real backward passes: alone, and in forked ranks over Gloo.
foreach(name reducer_test reducer_ranks_test)
  ddprun_test(NAME ${name} LABEL unit SOURCES unit/${name}.cc LIBS ddprun_reducer ddprun_gloo)
  ddprun_use_torch(${name})
endforeach()
endif()
