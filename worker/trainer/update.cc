#include "worker/trainer/update.h"

namespace ddprun {

absl::StatusOr<std::unique_ptr<ParameterUpdate>> ParameterUpdate::Create(
    const TrainConfig& config, std::vector<NamedTensor> parameters, const RunLength& length) {
  std::unique_ptr<ParameterUpdate> update(
      new ParameterUpdate(config, std::move(parameters), length));
  absl::StatusOr<std::unique_ptr<Optimizer>> optimizer =
      CreateOptimizer(config, update->parameters_);
  if (!optimizer.ok()) return optimizer.status();
  update->optimizer_ = *std::move(optimizer);
  return update;
}

at::Tensor ParameterUpdate::ScaleLoss(const at::Tensor& loss) const {
  return loss;
}

absl::StatusOr<UpdateOutcome> ParameterUpdate::Step(int64_t step,
                                                    const GradientReducer& /*reducer*/) {
  UpdateOutcome outcome;
  outcome.lr = LearningRate(step);
  std::vector<bool> used;
  used.reserve(parameters_.size());
  for (const NamedTensor& parameter : parameters_) {
    used.push_back(parameter.tensor.grad().defined());
  }
  optimizer_->Step(outcome.lr, used);
  return outcome;
}

double ParameterUpdate::LearningRate(int64_t /*step*/) const {
  return config_.train_lr;
}

std::vector<NamedTensor> ParameterUpdate::State() const {
  return optimizer_->State();
}

std::vector<NamedTensor> ParameterUpdate::AveragedWeights() const {
  return {};
}

}  // namespace ddprun
