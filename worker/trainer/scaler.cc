#include "worker/trainer/scaler.h"

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

constexpr double kGrowth = 2.0;
constexpr double kBackoff = 0.5;
// From the usual 65536 that is 43 updates in a row without finite gradients. A run that recovers
// does so within a few.
constexpr double kScaleMin = 1e-8;

}  // namespace

LossScaler::LossScaler(const TrainConfig& config, const at::Device& device)
    : growth_steps_(config.precision_loss_scale_growth_steps) {
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  scale_ = at::full({}, config.precision_loss_scale, options);
  growth_tracker_ = at::zeros({}, options.dtype(at::kInt));
  found_inf_ = at::zeros({}, options);
}

void LossScaler::Unscale(const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  found_inf_.zero_();
  // As PyTorch: the reciprocal in float64, where that of a power of two is exact anyway.
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  // The operator takes tensors of one type.
  for (at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    std::vector<at::Tensor> of_type;
    for (const at::Tensor& gradient : gradients) {
      if (gradient.scalar_type() == type) of_type.push_back(gradient);
    }
    if (!of_type.empty()) {
      at::_amp_foreach_non_finite_check_and_unscale_(of_type, found_inf_, inverse);
    }
  }
}

void LossScaler::Update() {
  const at::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, kGrowth, kBackoff, growth_steps_);
}

absl::Status LossScaler::CheckScale() const {
  const double now = scale();
  if (now >= kScaleMin) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "[precision] amp = \"fp16\": the gradients were not finite in update after update, and the "
      "loss scale has fallen to ",
      now,
      "; no loss scale can help. Train with amp = \"bf16\" or \"off\", or with a smaller lr, a "
      "warm-up or clip_norm"));
}

std::vector<NamedTensor> LossScaler::State() const {
  return {{"loss_scale", scale_}, {"loss_scale_growth_tracker", growth_tracker_}};
}

}  // namespace ddprun
