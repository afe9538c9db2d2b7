#include "worker/trainer/forward.h"

namespace ddprun {
namespace {

// Gives the blocks' results to no one in 16 bits: sums over classes need more.
at::Tensor InFloat32(const at::Tensor& output) {
  return output.is_floating_point() ? output.to(at::kFloat) : output;
}

}  // namespace

ForwardPass::ForwardPass(Model* model, const TrainConfig& config, const at::Device& device)
    : model_(model), autocast_(AutocastModeOf(config, device)) {
  if (config.precision_recompute == "blocks") recompute_.emplace(*model, autocast_);
}

at::Tensor ForwardPass::Forward(const at::Tensor& input, int first, int last) {
  const AutocastScope autocast(autocast_);
  if (!recompute_) return model_->Forward(input, first, last);
  at::Tensor activation = input;
  for (int i = first; i < last; ++i) {
    activation = i + 1 < model_->size() ? recompute_->Run(i, activation)
                                        : model_->Forward(activation, i, i + 1);
  }
  return activation;
}

at::Tensor ForwardPass::Evaluate(const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  const AutocastScope autocast(autocast_);
  return InFloat32(model_->Forward(input, 0, model_->size()));
}

at::Tensor ForwardPass::Loss(const at::Tensor& output, const at::Tensor& targets) {
  return model_->loss().Compute(InFloat32(output), targets);
}

at::Tensor ForwardPass::WeightedLoss(const at::Tensor& output, const at::Tensor& targets,
                                     int micro_batch) {
  return loss_weights_.Apply(Loss(output, targets), micro_batch);
}

}  // namespace ddprun
