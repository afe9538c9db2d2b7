// The optimizers: sgd, adam, adamw, with the arithmetic of torch.optim's. LibTorch's fused kernels
// where they fit (element by element, so results do not depend on how parameters are grouped), else
// whole-list operations. State is per parameter, as in PyTorch; a parameter that got no gradient in
// a step is left alone wholly: no decay, no moment, no step count (TR4). One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "worker/model/model.h"

namespace ddprun {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One update from the parameters' .grad; those without one are left out. `found_inf`, where
  // defined, is a float32 scalar on the parameters' device: with 1 nothing is changed, and nobody
  // waits for the device to know it.
  void Step(double lr, const at::Tensor& found_inf = {});
  // The tensors that a checkpoint holds, under names like `exp_avg.conv.weight`; updated in place,
  // so the list may be kept. A resume copies into them.
  std::vector<NamedTensor> State() const;

 protected:
  // One kind of state, with a tensor for each parameter.
  struct StateKind {
    std::string name;
    std::vector<at::Tensor> tensors;
  };
  // What belongs together in one call of a kernel, by place in the lists of Group::parameters.
  struct Group {
    double weight_decay = 0;
    bool fused = true;
    std::vector<size_t> members;  // indices of parameters
  };
  // The lists of one call; state in the order of `state_`.
  struct Lists {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    std::vector<std::vector<at::Tensor>> state;
  };

  Optimizer(const TrainConfig& config, std::vector<NamedTensor> named);
  // zeros_like of every parameter, or float32 scalars.
  void AddState(const std::string& name, bool scalars);
  virtual void Fused(double lr, const Group& group, const Lists& lists,
                     const at::Tensor& found_inf) = 0;
  virtual void Foreach(double lr, const Group& group, const Lists& lists) = 0;

  const TrainConfig config_;

 private:
  void AddToGroup(size_t parameter);

  const std::vector<NamedTensor> named_;
  std::vector<StateKind> state_;
  std::vector<Group> groups_;
};

absl::StatusOr<std::unique_ptr<Optimizer>> CreateOptimizer(const TrainConfig& config,
                                                           std::vector<NamedTensor> parameters);

}  // namespace ddprun
