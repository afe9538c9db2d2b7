#include "worker/trainer/update.h"

#include "worker/trainer/clip.h"

namespace ddprun {
namespace {

// How often a GPU is asked whether the loss scale still makes sense.
constexpr int64_t kScaleCheckSteps = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterUpdate>> ParameterUpdate::Create(
    const TrainConfig& config, std::vector<NamedTensor> parameters, const RunLength& length) {
  absl::StatusOr<LearningRateSchedule> schedule = LearningRateSchedule::Create(config, length);
  if (!schedule.ok()) return schedule.status();
  std::unique_ptr<ParameterUpdate> update(
      new ParameterUpdate(config, std::move(parameters), *schedule));
  absl::StatusOr<std::unique_ptr<Optimizer>> optimizer =
      CreateOptimizer(config, update->parameters_);
  if (!optimizer.ok()) return optimizer.status();
  update->optimizer_ = *std::move(optimizer);
  if (config.precision_amp == "fp16" && !update->parameters_.empty()) {
    update->scaler_ =
        std::make_unique<LossScaler>(config, update->parameters_.front().tensor.device());
  }
  if (config.train_ema_decay > 0) {
    update->average_ = std::make_unique<WeightAverage>(config.train_ema_decay, update->parameters_);
  }
  return update;
}

void ParameterUpdate::BeginRun() {
  if (average_ != nullptr) average_->Begin();
}

at::Tensor ParameterUpdate::ScaleLoss(const at::Tensor& loss) const {
  return scaler_ == nullptr ? loss : scaler_->Scale(loss);
}

absl::Status ParameterUpdate::Step(int64_t position, const GradientReducer& reducer) {
  lr_ = schedule_.At(position);
  ++updates_;
  const std::vector<at::Tensor>& gradients = reducer.flat_gradients();
  at::Tensor found_inf;
  bool skip = false;
  if (scaler_ != nullptr) {
    loss_scale_ = scaler_->State().front().tensor.clone();
    scaler_->Unscale(gradients);
    found_inf = scaler_->found_inf();
    // A CPU has the answer at hand; a GPU's stays on it.
    if (found_inf.is_cpu()) skip = scaler_->Overflowed();
  }
  if (config_.train_clip_norm > 0) {
    grad_norm_ = GlobalNorm(gradients);
    if (!skip) ClipToNorm(gradients, grad_norm_, config_.train_clip_norm);
  }
  if (!skip) {
    const at::Tensor undecided =
        found_inf.defined() && !found_inf.is_cpu() ? found_inf : at::Tensor();
    optimizer_->Step(lr_, undecided);
    if (average_ != nullptr) average_->Update(undecided);
  }
  if (scaler_ == nullptr) return absl::OkStatus();
  scaler_->Update();
  const bool check = found_inf.is_cpu() ? skip : updates_ % kScaleCheckSteps == 0;
  return check ? scaler_->CheckScale() : absl::OkStatus();
}

UpdateOutcome ParameterUpdate::Outcome() const {
  UpdateOutcome outcome{.lr = lr_};
  if (scaler_ != nullptr && loss_scale_.defined()) {
    outcome.skipped = scaler_->Overflowed();
    outcome.loss_scale = loss_scale_.item<double>();
  }
  if (grad_norm_.defined()) outcome.grad_norm = grad_norm_.item<double>();
  return outcome;
}

std::vector<NamedTensor> ParameterUpdate::State() const {
  std::vector<NamedTensor> all = optimizer_->State();
  if (scaler_ == nullptr) return all;
  for (const NamedTensor& item : scaler_->State()) all.push_back(item);
  return all;
}

std::vector<NamedTensor> ParameterUpdate::AveragedWeights() const {
  return average_ == nullptr ? std::vector<NamedTensor>() : average_->Tensors();
}

}  // namespace ddprun
