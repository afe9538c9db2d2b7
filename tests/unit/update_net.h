// Two parameters with prescribed gradients, as in make_update_vectors.py, and an update of them.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/trainer/update.h"

namespace ddprun {

inline at::Tensor Numbers(double (*function)(double), int64_t begin, at::IntArrayRef shape) {
  const at::Tensor at = at::arange(c10::multiply_integers(shape), at::kDouble) + double(begin);
  at::Tensor values = at::empty_like(at);
  for (int64_t i = 0; i < at.numel(); ++i) {
    values.data_ptr<double>()[i] = function(at.data_ptr<double>()[i]);
  }
  return values.to(at::kFloat).reshape(shape);
}

class UpdateNet {
 public:
  UpdateNet(const TrainConfig& config, Communicator* communicator, const RunLength& length = {}) {
    Add("matrix", Numbers(std::sin, 1, {3, 4}));
    Add("bias", Numbers(std::sin, 13, {4}));
    Make(config, communicator, length);
  }
  // Parameters of one's own.
  UpdateNet(const TrainConfig& config, const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& tensor : parameters) {
      Add(absl::StrCat("p", parameters_.size()), tensor);
    }
    Make(config, nullptr, {});
  }

  static std::vector<at::Tensor> Gradients(int step) {
    return {Numbers(std::cos, 1 + step, {3, 4}), Numbers(std::cos, 13 + step, {4})};
  }

  // Backward with these gradients (undefined: the parameter is not used) and one update.
  absl::Status Step(int64_t step, const std::vector<at::Tensor>& gradients) {
    reducer->Prepare(true);
    at::Tensor loss = at::zeros({});
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined()) loss = loss + (parameters_[i].tensor * gradients[i]).sum();
    }
    update->ScaleLoss(loss).backward();
    if (absl::Status status = reducer->Finish(); !status.ok()) return status;
    return update->Step(step, *reducer);
  }

  const at::Tensor& parameter(size_t i) const { return parameters_[i].tensor; }
  std::vector<float> Values() const { return Flat(parameters_); }
  static std::vector<float> Flat(const std::vector<NamedTensor>& tensors) {
    std::vector<float> values;
    for (const NamedTensor& item : tensors) {
      const at::Tensor flat = item.tensor.detach().to(at::kFloat).contiguous();
      values.insert(values.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
    }
    return values;
  }

  std::unique_ptr<GradientReducer> reducer;
  std::unique_ptr<ParameterUpdate> update;

 private:
  void Add(const std::string& name, const at::Tensor& value) {
    parameters_.push_back({name, value.detach().requires_grad_(true)});
  }
  void Make(const TrainConfig& config, Communicator* communicator, const RunLength& length) {
    NamedTensors pairs;
    for (const NamedTensor& item : parameters_) pairs.emplace_back(item.name, item.tensor);
    ReducerOptions options;
    options.allow_unused = true;
    auto made = GradientReducer::Create(pairs, communicator, options);
    if (!made.ok()) throw std::runtime_error(made.status().ToString());
    reducer = *std::move(made);
    auto update_made = ParameterUpdate::Create(config, parameters_, length);
    if (!update_made.ok()) throw std::runtime_error(update_made.status().ToString());
    update = *std::move(update_made);
  }

  std::vector<NamedTensor> parameters_;
};

}  // namespace ddprun
