// The forward side of an update: from a batch to a loss that backward can be called on. Owns what
// changes how the model computes (autocast, recompute) and how much a loss counts, not the model
// itself. Belongs to the training thread.
//
// Backward is called outside of autocast, on what WeightedLoss gives. With recompute the last
// block keeps its activations: its backward comes at once.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <utility>

#include "common/config/train_config.h"
#include "worker/model/model.h"
#include "worker/trainer/autocast.h"
#include "worker/trainer/loss_weights.h"
#include "worker/trainer/recompute.h"

namespace ddprun {

class ForwardPass {
 public:
  // `model` is on the device already and outlives the pass.
  ForwardPass(Model* model, const TrainConfig& config, const at::Device& device);

  // Blocks first … last−1 as training computes them.
  at::Tensor Forward(const at::Tensor& input, int first, int last);
  // All blocks as an evaluation computes them: with the autocast of training, no gradients;
  // evaluation mode of the blocks is the caller's.
  at::Tensor Evaluate(const at::Tensor& input);
  // The mean over the valid targets, computed in float32.
  at::Tensor Loss(const at::Tensor& output, const at::Tensor& targets);
  // The part of a micro-batch in the loss of the update, whose weights are set before.
  void set_loss_weights(LossWeights weights) { loss_weights_ = std::move(weights); }
  at::Tensor WeightedLoss(const at::Tensor& output, const at::Tensor& targets, int micro_batch);

 private:
  Model* const model_;
  const AutocastMode autocast_;
  std::optional<Recompute> recompute_;
  LossWeights loss_weights_;
};

}  // namespace ddprun
