#include "worker/trainer/ema.h"

namespace ddprun {

WeightAverage::WeightAverage(double decay, const std::vector<NamedTensor>& parameters)
    : decay_(decay) {
  for (const NamedTensor& parameter : parameters) {
    weights_.push_back(parameter.tensor.detach());
    averages_.push_back(weights_.back().clone());
    named_.push_back({parameter.name, averages_.back()});
  }
}

void WeightAverage::Begin() {
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(averages_, weights_);
}

void WeightAverage::Update(const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  if (!found_inf.defined()) {
    at::_foreach_lerp_(averages_, weights_, 1 - decay_);
    return;
  }
  // A weight of 0 where the update was left out, decided on the device.
  const at::Tensor weight = (1 - found_inf) * (1 - decay_);
  std::vector<at::Tensor> weights;
  weights.reserve(averages_.size());
  for (const at::Tensor& average : averages_) {
    weights.push_back(weight.to(average.scalar_type()).expand_as(average));
  }
  at::_foreach_lerp_(averages_, weights_, weights);
}

std::vector<NamedTensor> WeightAverage::Tensors() const {
  return named_;
}

}  // namespace ddprun
