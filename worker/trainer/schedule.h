// The learning rate of each update. Values and pure functions, no LibTorch, any thread.
//
// With s the number of the update (0-based), W the length of the warm-up, T the updates of the run,
// E those of an epoch, and `peak` = lr × data-parallel ranks with scale_lr = linear (Goyal et al.
// 2017, "Accurate, Large Minibatch SGD"), else lr:
//   s < W      peak · (s + 1) / W
//   constant   peak
//   step       peak · gamma^⌊⌊s / E⌋ / decay_epochs⌋, epochs counted from the start of the run
//   cosine     min_lr + (peak − min_lr) · (1 + cos(π (s − W) / (T − W))) / 2
//   linear     peak + (min_lr − peak) · (s − W) / (T − W)
// These are the values of PyTorch's schedulers of the same names, stepped once an update.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/config/train_config.h"

namespace ddprun {

// What a schedule of the learning rate needs to know of the run.
struct RunLength {
  int64_t total_steps = 0;
  int64_t steps_per_epoch = 0;
  int world_size = 1;
};

class LearningRateSchedule {
 public:
  // INVALID_ARGUMENT when the warm-up does not fit into the run; names the key.
  static absl::StatusOr<LearningRateSchedule> Create(const TrainConfig& config,
                                                     const RunLength& length);
  // Of update `step` ≥ 0; after the end of the run as at its end.
  double At(int64_t step) const;
  // After the warm-up.
  double peak() const { return peak_; }
  int64_t warmup_steps() const { return warmup_steps_; }

 private:
  enum class Shape { kConstant, kStep, kCosine, kLinear };

  Shape shape_ = Shape::kConstant;
  double peak_ = 0;
  double end_ = 0;
  double gamma_ = 1;
  int64_t warmup_steps_ = 0;
  int64_t decay_steps_ = 1;  // T − W
  int64_t steps_per_epoch_ = 1;
  int64_t decay_epochs_ = 1;
};

// The place in the schedule of a run that has used `samples_in_epoch` samples of `epoch` after
// `steps_done` updates. It is `steps_done`, except when the run is counted in epochs and went on
// with another number of ranks: then the updates that this number of ranks would have needed to get
// there, so that the schedule still ends with the run.
int64_t SchedulePosition(const TrainConfig& config, const RunLength& length, int64_t steps_done,
                         int64_t epoch, int64_t samples_in_epoch);

}  // namespace ddprun
