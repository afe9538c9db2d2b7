#include "worker/trainer/optimizer.h"

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

std::vector<at::Tensor> Select(const std::vector<at::Tensor>& all, const std::vector<bool>& used) {
  std::vector<at::Tensor> some;
  for (size_t i = 0; i < all.size(); ++i) {
    if (used[i]) some.push_back(all[i]);
  }
  return some;
}

std::vector<at::Tensor> Gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

void AppendNamed(const std::string& prefix, const std::vector<NamedTensor>& parameters,
                 const std::vector<at::Tensor>& tensors, std::vector<NamedTensor>* out) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    out->push_back({absl::StrCat(prefix, ".", parameters[i].name), tensors[i]});
  }
}

// Adam (Kingma and Ba), weight decay added to the gradient; AdamW (Loshchilov and Hutter), decay on
// the weight.
class AdamOptimizer : public Optimizer {
 public:
  AdamOptimizer(const TrainConfig& config, std::vector<NamedTensor> named)
      : config_(config), decoupled_(config.train_optimizer == "adamw"), named_(std::move(named)) {
    for (const NamedTensor& parameter : named_) {
      parameters_.push_back(parameter.tensor);
      exp_avg_.push_back(at::zeros_like(parameter.tensor));
      exp_avg_sq_.push_back(at::zeros_like(parameter.tensor));
      // The fused kernels want the count as a float tensor on the parameter's device.
      step_.push_back(at::zeros({}, parameter.tensor.options().dtype(at::kFloat)));
    }
  }
  void Step(double lr, const std::vector<bool>& used) override {
    const at::NoGradGuard no_grad;
    const auto parameters = Select(parameters_, used);
    if (parameters.empty()) return;
    const auto steps = Select(step_, used);
    for (const at::Tensor& step : steps) step.add_(1);
    const auto update = decoupled_ ? static_cast<Kernel*>(&at::_fused_adamw_)
                                   : static_cast<Kernel*>(&at::_fused_adam_);
    update(parameters, Gradients(parameters), Select(exp_avg_, used), Select(exp_avg_sq_, used), {},
           steps, lr, config_.train_betas[0], config_.train_betas[1], config_.train_weight_decay,
           config_.train_eps,
           /*amsgrad=*/false, /*maximize=*/false, {}, {});
  }
  std::vector<NamedTensor> State() const override {
    std::vector<NamedTensor> all;
    AppendNamed("exp_avg", named_, exp_avg_, &all);
    AppendNamed("exp_avg_sq", named_, exp_avg_sq_, &all);
    AppendNamed("step", named_, step_, &all);
    return all;
  }

 private:
  using Kernel = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                      at::TensorList, at::TensorList, double, double, double, double, double, bool,
                      bool, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&);
  const TrainConfig config_;
  const bool decoupled_;
  const std::vector<NamedTensor> named_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> exp_avg_;
  std::vector<at::Tensor> exp_avg_sq_;
  std::vector<at::Tensor> step_;
};

// Stochastic gradient descent as torch.optim.SGD: the first step takes the gradient itself as
// momentum buffer.
class SgdOptimizer : public Optimizer {
 public:
  SgdOptimizer(const TrainConfig& config, std::vector<NamedTensor> named)
      : config_(config), named_(std::move(named)) {
    for (const NamedTensor& parameter : named_) {
      parameters_.push_back(parameter.tensor);
      if (config_.train_momentum > 0) momentum_.push_back(at::zeros_like(parameter.tensor));
    }
  }
  void Step(double lr, const std::vector<bool>& used) override {
    const at::NoGradGuard no_grad;
    const auto parameters = Select(parameters_, used);
    if (parameters.empty()) return;
    const auto momentum = momentum_.empty() ? std::vector<at::Tensor>() : Select(momentum_, used);
    // With dampening 0 a buffer of zeros gives the gradient itself in the first step, so there is
    // no first-step flag to keep.
    at::_fused_sgd_(parameters, Gradients(parameters), momentum, config_.train_weight_decay,
                    config_.train_momentum, lr,
                    /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/false);
  }
  std::vector<NamedTensor> State() const override {
    std::vector<NamedTensor> all;
    AppendNamed("momentum_buffer", named_, momentum_, &all);
    return all;
  }

 private:
  const TrainConfig config_;
  const std::vector<NamedTensor> named_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> momentum_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> CreateOptimizer(const TrainConfig& config,
                                                           std::vector<NamedTensor> parameters) {
  if (config.train_optimizer == "adam" || config.train_optimizer == "adamw") {
    return std::make_unique<AdamOptimizer>(config, std::move(parameters));
  }
  if (config.train_optimizer == "sgd")
    return std::make_unique<SgdOptimizer>(config, std::move(parameters));
  return absl::UnimplementedError(
      absl::StrCat("[train] optimizer: this worker has no \"", config.train_optimizer, "\""));
}

}  // namespace ddprun
