// The update side: from reduced gradients to new weights. Owns the optimizer and everything that
// decides one update besides the gradients: learning rate, loss scale, clipping, the moving average
// of the weights. What it decides is a function of the reduced gradients and the step, and so equal
// on all ranks. Belongs to the training thread.
//
// An update with fp16 whose gradients are not finite is left out: weights, average and the
// optimizer's counts stay as they are, but it is a step like any other for the schedule, the log
// and checkpoints.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "worker/model/model.h"
#include "worker/trainer/ema.h"
#include "worker/trainer/optimizer.h"
#include "worker/trainer/reducer.h"
#include "worker/trainer/scaler.h"
#include "worker/trainer/schedule.h"

namespace ddprun {

struct UpdateOutcome {
  double lr = 0;
  bool skipped = false;              // the scaled gradients were not finite; weights are as before
  std::optional<double> loss_scale;  // used for this update; with fp16
  std::optional<double> grad_norm;   // before clipping; with clip_norm
};

class ParameterUpdate {
 public:
  static absl::StatusOr<std::unique_ptr<ParameterUpdate>> Create(
      const TrainConfig& config, std::vector<NamedTensor> parameters, const RunLength& length);

  // Once, when the weights are those that a run starts with: initial ones, not of a checkpoint.
  void BeginRun();
  // What backward is called on.
  at::Tensor ScaleLoss(const at::Tensor& loss) const;
  // One update, from gradients that are reduced, at this place in the schedule (SchedulePosition).
  absl::Status Step(int64_t position, const GradientReducer& reducer);
  // Of the last Step. Waits for a GPU with fp16 or clip_norm: not for every step.
  UpdateOutcome Outcome() const;

  // For checkpoints: updated in place, a resume copies into them.
  std::vector<NamedTensor> State() const;
  // Averaged weights under the parameters' names; empty when they are not kept.
  std::vector<NamedTensor> AveragedWeights() const;
  bool averages() const { return average_ != nullptr; }

 private:
  ParameterUpdate(const TrainConfig& config, std::vector<NamedTensor> parameters,
                  LearningRateSchedule schedule)
      : config_(config), parameters_(std::move(parameters)), schedule_(schedule) {}

  const TrainConfig config_;
  const std::vector<NamedTensor> parameters_;
  const LearningRateSchedule schedule_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<LossScaler> scaler_;      // with fp16
  std::unique_ptr<WeightAverage> average_;  // with ema_decay
  int64_t updates_ = 0;                     // in this process
  // Of the last update.
  double lr_ = 0;
  at::Tensor loss_scale_;
  at::Tensor grad_norm_;
};

}  // namespace ddprun
