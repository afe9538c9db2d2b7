// The optimizers: sgd, adam, adamw on LibTorch's fused kernels (element by element, so results do
// not depend on how parameters are grouped). State is per parameter, as in PyTorch; a parameter
// that got no gradient in a step is left alone wholly: no decay, no moment, no step count (TR4).
// One thread.
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
  // One update from the parameters' .grad. `used[i]` says whether parameter i got a gradient on any
  // rank.
  virtual void Step(double lr, const std::vector<bool>& used) = 0;
  // The tensors that a checkpoint holds, under names like `exp_avg.conv.weight`; updated in place,
  // so the list may be kept. A resume copies into them.
  virtual std::vector<NamedTensor> State() const = 0;
};

absl::StatusOr<std::unique_ptr<Optimizer>> CreateOptimizer(const TrainConfig& config,
                                                           std::vector<NamedTensor> parameters);

}  // namespace ddprun
