// The update side: from reduced gradients to new weights. Owns the optimizer and everything that
// decides one update besides the gradients: learning rate, loss scale, clipping, the moving average
// of the weights. What it decides is a function of the reduced gradients and the step, and so equal
// on all ranks. Belongs to the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "worker/model/model.h"
#include "worker/trainer/optimizer.h"
#include "worker/trainer/reducer.h"

namespace ddprun {

// What a schedule of the learning rate needs to know of the run.
struct RunLength {
  int64_t total_steps = 0;
  int64_t steps_per_epoch = 0;
  int world_size = 1;
};

struct UpdateOutcome {
  double lr = 0;
  bool skipped = false;   // the scaled gradients were not finite; weights are as before
  double loss_scale = 1;  // used for this update
};

class ParameterUpdate {
 public:
  static absl::StatusOr<std::unique_ptr<ParameterUpdate>> Create(
      const TrainConfig& config, std::vector<NamedTensor> parameters, const RunLength& length);

  // What backward is called on.
  at::Tensor ScaleLoss(const at::Tensor& loss) const;
  // Update number `step` (0-based: updates done before it), from gradients that are reduced.
  absl::StatusOr<UpdateOutcome> Step(int64_t step, const GradientReducer& reducer);
  // Of update number `step`.
  double LearningRate(int64_t step) const;

  // For checkpoints: updated in place, a resume copies into them.
  std::vector<NamedTensor> State() const;
  // Averaged weights under the parameters' names; empty when they are not kept.
  std::vector<NamedTensor> AveragedWeights() const;

 private:
  ParameterUpdate(const TrainConfig& config, std::vector<NamedTensor> parameters,
                  const RunLength& length)
      : config_(config), parameters_(std::move(parameters)), length_(length) {}

  const TrainConfig config_;
  const std::vector<NamedTensor> parameters_;
  const RunLength length_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace ddprun
