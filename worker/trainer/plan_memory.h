// How much memory a rank needs, by kind, and what would make it less. Parameters, gradients and
// optimizer are counted; activations are measured: the model's forward and backward run on the CPU
// with one sample and with two, while every allocation of the thread is counted.
//
// Needs no data and no other rank, so a worker that has run out of memory can ask, too. One thread;
// replaces LibTorch's CPU allocator meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/trainer/update.h"

namespace ddprun {

// What forward and backward of n samples take at their peak, beside parameters and gradients:
// fixed + n · per_sample bytes.
struct ActivationCost {
  int64_t fixed = 0;
  int64_t per_sample = 0;
  int64_t Of(int64_t samples) const { return fixed + samples * per_sample; }
};

// "[data] batch_size = 32 with [train] accumulation_steps = 2": the same update.
std::string HalfTheBatchText(const TrainConfig& config);

// Bytes that forward and backward of `count` samples take at their peak. The gradients are there
// before, as the reducer's buffers are, or are counted.
int64_t MeasurePeak(Model* model, const TrainConfig& config, const SampleSpec& samples,
                    int64_t count);

// As `config` has it (autocast, recompute); `model` is on the CPU. Leaves its gradients undefined.
absl::StatusOr<ActivationCost> MeasureActivations(Model* model, const TrainConfig& config,
                                                  const SampleSpec& samples);

// Bytes of one rank.
struct MemoryPlan {
  int64_t weights = 0;
  int64_t buffers = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t average = 0;  // train.ema_decay
  int64_t activations = 0;
  int64_t loader = 0;           // batches that are prepared ahead; on the host
  int64_t checkpoint_copy = 0;  // of rank 0; on the host
  // Of the device that computes.
  int64_t OnDevice() const {
    return weights + buffers + gradients + optimizer + average + activations;
  }
};

// What one change of the configuration would make of it.
struct MemoryOption {
  std::string change;  // "recompute = \"blocks\" in [precision]"
  int64_t activations = 0;
  int64_t on_device = 0;
};

struct MemoryAdvice {
  ActivationCost cost;
  MemoryPlan plan;
  std::vector<MemoryOption> options;  // those that change something, the one that helps most first
  std::vector<std::string> unmeasured;  // changes that there was no time for
};

// `update` says how large optimizer and averages are. After `seconds_max` no further option is
// measured. `progress` gets what is known so far, each time that it is more; may be empty.
absl::StatusOr<MemoryAdvice> PlanMemory(Model* model, const ParameterUpdate& update,
                                        const TrainConfig& config, const SampleSpec& samples,
                                        double seconds_max,
                                        const std::function<void(MemoryAdvice)>& progress = {});

}  // namespace ddprun
