// Part of libddp_worker_cuda.so: what a GPU is called.
#include <ATen/cuda/CUDAContext.h>

#include "worker/comm/nccl_module.h"

extern "C" __attribute__((visibility("default"))) const char* ddprun_cuda_device_name(int device) {
  return at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device))->name;
}
