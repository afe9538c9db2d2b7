# The parallel logic, free of LibTorch. parallel_sampler_test also compares with Python's torch where it can be imported.
if(TARGET ddprun_parallel)
  ddprun_test(NAME parallel_sampler_test LABEL unit SOURCES unit/parallel_sampler_test.cc LIBS ddprun_parallel)
  ddprun_test(NAME parallel_buckets_test LABEL unit SOURCES unit/parallel_buckets_test.cc LIBS ddprun_parallel)
  ddprun_test(NAME parallel_fingerprint_test LABEL unit SOURCES unit/parallel_fingerprint_test.cc LIBS ddprun_parallel)
endif()
