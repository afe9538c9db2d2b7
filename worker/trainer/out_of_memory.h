// What to say when there is not enough memory: who uses how much, and which setting would free how
// much of it: by a dry run (dry_run.h), else estimated. The activations of a batch are what is in
// use besides the state that every step keeps; they grow with the batch and not with the model's
// state. Pure but for PeakMemoryInUse.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "common/config/train_config.h"
#include "worker/model/model.h"

namespace ddprun {

struct MemoryAdvice;

// Of one rank, in bytes.
struct StateBytes {
  int64_t weights = 0;    // with buffers
  int64_t gradients = 0;  // with the buckets' padding
  int64_t optimizer = 0;
  int64_t average = 0;  // train.ema_decay
  // In the host's memory, wherever the rank computes.
  int64_t checkpoint_copy = 0;  // of rank 0
  int64_t loader = 0;           // batches that are prepared ahead
  int blocks = 0;               // of the model
  // What is kept where the rank computes.
  int64_t Kept(bool on_cpu) const {
    return weights + gradients + optimizer + average + (on_cpu ? checkpoint_copy + loader : 0);
  }
};

int64_t TensorBytes(const std::vector<NamedTensor>& tensors);

// Whether LibTorch or the C++ library ran out of memory.
bool IsOutOfMemory(const std::exception& error);

// Most that was in use at one time: by LibTorch on a GPU, by this process on a CPU.
int64_t PeakMemoryInUse(const at::Device& device);

struct OutOfMemory {
  std::string reason;                    // what was asked for, in the allocator's words
  StateBytes state;                      // all 0 where memory ran out before it was known
  int64_t in_use = 0;                    // at most
  bool on_cpu = true;                    // then `in_use` is the whole process
  const MemoryAdvice* advice = nullptr;  // of a dry run; null: estimates
};

// Several lines.
std::string OutOfMemoryText(const OutOfMemory& what, const TrainConfig& config);

}  // namespace ddprun
