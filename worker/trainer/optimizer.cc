#include "worker/trainer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

// The fused kernels run over the memory of all lists in parallel, whatever the shapes.
bool FusedFits(const at::Tensor& parameter) {
  return (parameter.is_cpu() || parameter.is_cuda()) &&
         at::isFloatingType(parameter.scalar_type()) && parameter.is_non_overlapping_and_dense();
}

// Biases and the scales of norms have one dimension; what multiplies an input has more.
bool Decays(const TrainConfig& config, const at::Tensor& parameter) {
  return config.train_weight_decay_on == "all" || parameter.dim() > 1;
}

}  // namespace

Optimizer::Optimizer(const TrainConfig& config, std::vector<NamedTensor> named)
    : config_(config), named_(std::move(named)) {
  for (size_t i = 0; i < named_.size(); ++i) AddToGroup(i);
}

void Optimizer::AddToGroup(size_t parameter) {
  const at::Tensor& tensor = named_[parameter].tensor;
  const double weight_decay = Decays(config_, tensor) ? config_.train_weight_decay : 0;
  const bool fused = FusedFits(tensor);
  const auto same = [&](const Group& group) {
    return group.weight_decay == weight_decay && group.fused == fused &&
           named_[group.members.front()].tensor.scalar_type() == tensor.scalar_type();
  };
  auto group = std::find_if(groups_.begin(), groups_.end(), same);
  if (group == groups_.end()) {
    groups_.push_back({.weight_decay = weight_decay, .fused = fused});
    group = std::prev(groups_.end());
  }
  group->members.push_back(parameter);
}

void Optimizer::AddState(const std::string& name, bool scalars) {
  StateKind kind{.name = name};
  for (const NamedTensor& parameter : named_) {
    const at::Tensor tensor = parameter.tensor.detach();
    kind.tensors.push_back(scalars ? at::zeros({}, tensor.options().dtype(at::kFloat))
                                   : at::zeros_like(tensor));
  }
  state_.push_back(std::move(kind));
}

void Optimizer::Step(double lr, const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    Lists lists;
    lists.state.resize(state_.size());
    for (size_t member : group.members) {
      const at::Tensor& parameter = named_[member].tensor;
      if (!parameter.grad().defined()) continue;
      lists.parameters.push_back(parameter.detach());
      lists.gradients.push_back(parameter.grad());
      for (size_t k = 0; k < state_.size(); ++k) {
        lists.state[k].push_back(state_[k].tensors[member]);
      }
    }
    if (lists.parameters.empty()) continue;
    if (group.fused) {
      Fused(lr, group, lists, found_inf);
    } else if (!found_inf.defined() || found_inf.item<float>() == 0) {
      Foreach(lr, group, lists);
    }
  }
}

std::vector<NamedTensor> Optimizer::State() const {
  std::vector<NamedTensor> all;
  for (const StateKind& kind : state_) {
    for (size_t i = 0; i < named_.size(); ++i) {
      all.push_back({absl::StrCat(kind.name, ".", named_[i].name), kind.tensors[i]});
    }
  }
  return all;
}

namespace {

std::optional<at::Tensor> Optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// Adam (Kingma and Ba), weight decay added to the gradient; AdamW (Loshchilov and Hutter), decay on
// the weight.
class AdamOptimizer : public Optimizer {
 public:
  AdamOptimizer(const TrainConfig& config, std::vector<NamedTensor> named)
      : Optimizer(config, std::move(named)), decoupled_(config.train_optimizer == "adamw") {
    AddState("exp_avg", /*scalars=*/false);
    AddState("exp_avg_sq", /*scalars=*/false);
    // The fused kernels want the count as a float tensor on the parameter's device.
    AddState("step", /*scalars=*/true);
  }

 protected:
  void Fused(double lr, const Group& group, const Lists& lists,
             const at::Tensor& found_inf) override {
    const std::vector<at::Tensor>& steps = lists.state[2];
    at::_foreach_add_(steps, 1);
    const auto update = decoupled_ ? static_cast<Kernel*>(&at::_fused_adamw_)
                                   : static_cast<Kernel*>(&at::_fused_adam_);
    update(lists.parameters, lists.gradients, lists.state[0], lists.state[1], {}, steps, lr,
           config_.train_betas[0], config_.train_betas[1], group.weight_decay, config_.train_eps,
           /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{}, Optional(found_inf));
    // What was not done is not counted.
    if (found_inf.defined()) {
      at::_foreach_sub_(steps, std::vector<at::Tensor>(steps.size(), found_inf));
    }
  }

  void Foreach(double lr, const Group& group, const Lists& lists) override {
    const auto& [parameters, gradients, state] = lists;
    const auto& [beta1, beta2] = config_.train_betas;
    at::_foreach_add_(state[2], 1);
    std::vector<at::Tensor> decayed = gradients;
    if (decoupled_) {
      at::_foreach_mul_(parameters, 1 - lr * group.weight_decay);
    } else if (group.weight_decay != 0) {
      decayed = at::_foreach_add(gradients, parameters, group.weight_decay);
    }
    at::_foreach_lerp_(state[0], decayed, 1 - beta1);
    at::_foreach_mul_(state[1], beta2);
    at::_foreach_addcmul_(state[1], decayed, decayed, 1 - beta2);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto step = state[2][i].item<double>();
      const double root = std::sqrt(1 - std::pow(beta2, step));
      const at::Tensor divisor = (state[1][i].sqrt() / root).add_(config_.train_eps);
      parameters[i].addcdiv_(state[0][i], divisor, -lr / (1 - std::pow(beta1, step)));
    }
  }

 private:
  using Kernel = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                      at::TensorList, at::TensorList, double, double, double, double, double, bool,
                      bool, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&);
  const bool decoupled_;
};

// Stochastic gradient descent as torch.optim.SGD: the first step takes the gradient itself as
// momentum buffer. With dampening 0 a buffer of zeros gives just that, so there is no first-step
// flag to keep.
class SgdOptimizer : public Optimizer {
 public:
  SgdOptimizer(const TrainConfig& config, std::vector<NamedTensor> named)
      : Optimizer(config, std::move(named)) {
    if (config_.train_momentum > 0) AddState("momentum_buffer", /*scalars=*/false);
  }

 protected:
  void Fused(double lr, const Group& group, const Lists& lists,
             const at::Tensor& found_inf) override {
    at::_fused_sgd_(lists.parameters, lists.gradients,
                    lists.state.empty() ? std::vector<at::Tensor>() : lists.state[0],
                    group.weight_decay, config_.train_momentum, lr, /*dampening=*/0.0,
                    config_.train_nesterov, /*maximize=*/false, /*is_first_step=*/false,
                    /*grad_scale=*/{}, Optional(found_inf));
  }

  void Foreach(double lr, const Group& group, const Lists& lists) override {
    std::vector<at::Tensor> direction = lists.gradients;
    if (group.weight_decay != 0) {
      direction = at::_foreach_add(direction, lists.parameters, group.weight_decay);
    }
    if (!lists.state.empty()) {
      const std::vector<at::Tensor>& momentum = lists.state[0];
      at::_foreach_mul_(momentum, config_.train_momentum);
      at::_foreach_add_(momentum, direction);
      direction = config_.train_nesterov
                      ? at::_foreach_add(direction, momentum, config_.train_momentum)
                      : momentum;
    }
    at::_foreach_add_(lists.parameters, direction, -lr);
  }
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
