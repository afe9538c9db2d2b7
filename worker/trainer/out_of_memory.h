// What to say when there is not enough memory: who uses how much, and which setting would free how
// much of it. The activations of a batch are what is in use besides the state that every step
// keeps; they grow with the batch and not with the model's state. Pure but for MemoryInUse.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "common/config/train_config.h"
#include "worker/model/model.h"

namespace ddprun {

// Of one rank, in bytes.
struct StateBytes {
  int64_t weights = 0;    // with buffers
  int64_t gradients = 0;  // with the buckets' padding
  int64_t optimizer = 0;
  int64_t total() const { return weights + gradients + optimizer; }
};

int64_t TensorBytes(const std::vector<NamedTensor>& tensors);

// Whether LibTorch or the C++ library ran out of memory.
bool IsOutOfMemory(const std::exception& error);

// Most that was in use at one time: by LibTorch on a GPU, by this process on a CPU.
int64_t PeakMemoryInUse(const at::Device& device);

// `reason`: what was asked for, in the allocator's words. Several lines.
std::string OutOfMemoryText(const std::string& reason, const StateBytes& state, int64_t in_use,
                            const TrainConfig& config);

}  // namespace ddprun
