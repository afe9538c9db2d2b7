// An exponential moving average of the weights: average = decay · average + (1 − decay) · weight
// after each update. Starts at the weights that the run starts with. One thread.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "worker/model/model.h"

namespace ddprun {

class WeightAverage {
 public:
  WeightAverage(double decay, const std::vector<NamedTensor>& parameters);

  // Begins anew at the weights as they are.
  void Begin();
  // After an update. `found_inf`, where defined, is 1 when the update was left out: then the
  // average stays as it is.
  void Update(const at::Tensor& found_inf);
  // Under the parameters' names.
  std::vector<NamedTensor> Tensors() const;

 private:
  const double decay_;
  std::vector<NamedTensor> named_;
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> averages_;
};

}  // namespace ddprun
