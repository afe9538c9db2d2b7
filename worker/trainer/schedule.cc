#include "worker/trainer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

// Warm-up that scale_lr = linear brings by itself: five epochs (Goyal et al.), but in a short run
// not more than this part of it.
constexpr int64_t kWarmupEpochs = 5;
constexpr int64_t kWarmupPartOfRun = 10;

int64_t WarmupSteps(const TrainConfig& config, const RunLength& length) {
  if (config.train_warmup_steps >= 0) return config.train_warmup_steps;
  if (config.train_scale_lr != "linear") return 0;
  return std::min(kWarmupEpochs * length.steps_per_epoch, length.total_steps / kWarmupPartOfRun);
}

}  // namespace

absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(const TrainConfig& config,
                                                                  const RunLength& length) {
  LearningRateSchedule schedule;
  schedule.warmup_steps_ = WarmupSteps(config, length);
  if (schedule.warmup_steps_ > length.total_steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[train] warmup_steps: is ", schedule.warmup_steps_, ", longer than the whole run of ",
        length.total_steps, " steps (", config.train_epochs, " epochs of ", length.steps_per_epoch,
        " with ", length.world_size, " ranks); make it smaller, or the run longer"));
  }
  if (config.train_schedule == "step") schedule.shape_ = Shape::kStep;
  if (config.train_schedule == "cosine") schedule.shape_ = Shape::kCosine;
  if (config.train_schedule == "linear") schedule.shape_ = Shape::kLinear;
  schedule.peak_ = config.train_lr * (config.train_scale_lr == "linear" ? length.world_size : 1);
  schedule.end_ = config.train_min_lr;
  schedule.gamma_ = config.train_gamma;
  schedule.decay_steps_ = std::max<int64_t>(1, length.total_steps - schedule.warmup_steps_);
  schedule.steps_per_epoch_ = std::max<int64_t>(1, length.steps_per_epoch);
  schedule.decay_epochs_ = config.train_decay_epochs;
  return schedule;
}

double LearningRateSchedule::At(int64_t step) const {
  if (step < warmup_steps_) {
    return peak_ * static_cast<double>(step + 1) / static_cast<double>(warmup_steps_);
  }
  const int64_t decayed = std::min(step - warmup_steps_, decay_steps_);
  const double progress = static_cast<double>(decayed) / static_cast<double>(decay_steps_);
  switch (shape_) {
    case Shape::kConstant:
      return peak_;
    case Shape::kStep: {
      const int64_t decays = step / steps_per_epoch_ / decay_epochs_;
      return peak_ * std::pow(gamma_, static_cast<double>(decays));
    }
    case Shape::kCosine:
      return end_ + (peak_ - end_) * (1 + std::cos(std::numbers::pi * progress)) / 2;
    case Shape::kLinear:
      return peak_ + (end_ - peak_) * progress;
  }
  return peak_;
}

int64_t SchedulePosition(const TrainConfig& config, const RunLength& length, int64_t steps_done,
                         int64_t epoch, int64_t samples_in_epoch) {
  if (config.train_steps > 0) return steps_done;
  const int64_t samples_per_step =
      config.data_batch_size * config.train_accumulation_steps * length.world_size;
  const int64_t in_epoch = std::min(samples_in_epoch / samples_per_step,
                                    std::max<int64_t>(0, length.steps_per_epoch - 1));
  return epoch * length.steps_per_epoch + in_epoch;
}

}  // namespace ddprun
