#include "worker/trainer/forward.h"

namespace ddprun {

ForwardPass::ForwardPass(Model* model, const TrainConfig& config, const at::Device& device)
    : model_(model), config_(config), device_(device) {}

at::Tensor ForwardPass::Forward(const at::Tensor& input, int first, int last) {
  return model_->Forward(input, first, last);
}

at::Tensor ForwardPass::Evaluate(const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  return model_->Forward(input, 0, model_->size());
}

at::Tensor ForwardPass::Loss(const at::Tensor& output, const at::Tensor& targets) {
  return model_->loss().Compute(output, targets);
}

}  // namespace ddprun
