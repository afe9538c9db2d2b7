// The forward side of an update: from a batch to a loss that backward can be called on. Owns what
// changes how the model computes (autocast, recompute), not the model itself. Belongs to the
// training thread.
#pragma once

#include <torch/torch.h>

#include "common/config/train_config.h"
#include "worker/model/model.h"

namespace ddprun {

class ForwardPass {
 public:
  // `model` outlives the pass.
  ForwardPass(Model* model, const TrainConfig& config, const at::Device& device);

  // Blocks first … last−1 as training computes them.
  at::Tensor Forward(const at::Tensor& input, int first, int last);
  // All blocks as an evaluation computes them: no gradients, evaluation mode of the blocks is the
  // caller's.
  at::Tensor Evaluate(const at::Tensor& input);
  // The mean over the valid targets of this micro-batch, float32.
  at::Tensor Loss(const at::Tensor& output, const at::Tensor& targets);

 private:
  Model* const model_;
  const TrainConfig& config_;
  const at::Device device_;
};

}  // namespace ddprun
