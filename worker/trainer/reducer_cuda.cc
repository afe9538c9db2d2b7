// Part of libddp_worker_cuda.so: tells communicators on which stream LibTorch computes.
#include <c10/cuda/CUDAStream.h>

#include "worker/comm/nccl_module.h"

extern "C" __attribute__((visibility("default"))) void* ddprun_current_cuda_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}
