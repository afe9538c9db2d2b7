// Loss scaling for float16, by the algorithm of torch.amp.GradScaler: the loss is multiplied by a
// scale so that small gradients do not vanish in half precision; where a scaled gradient is not
// finite the update is left out and the scale halved; after `growth_steps` updates in a row without
// that it is doubled.
//
// All decisions come from reduced gradients: an overflow on one rank makes the sum of all ranks
// infinite or NaN, so all ranks take the same decision without a collective of their own (TR21,
// TR22). State lies on the parameters' device; only the functions that say so wait for it. One
// thread.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "absl/status/status.h"
#include "common/config/train_config.h"
#include "worker/model/model.h"

namespace ddprun {

class LossScaler {
 public:
  LossScaler(const TrainConfig& config, const at::Device& device);

  at::Tensor Scale(const at::Tensor& loss) const { return loss * scale_.to(loss.scalar_type()); }
  // Divides the gradients by the scale; found_inf() is then 1 if any of them was not finite, else
  // 0.
  void Unscale(const std::vector<at::Tensor>& gradients);
  const at::Tensor& found_inf() const { return found_inf_; }
  // The scale of the next update, after Unscale of this one.
  void Update();

  // These wait for a GPU.
  bool Overflowed() const { return found_inf_.item<float>() != 0; }
  double scale() const { return scale_.item<double>(); }
  // FAILED_PRECONDITION when the scale has become so small that it helps nobody: gradients are not
  // finite whatever it is.
  absl::Status CheckScale() const;

  // For checkpoints, in place.
  std::vector<NamedTensor> State() const;

 private:
  const int64_t growth_steps_;
  at::Tensor scale_;           // float32 scalar
  at::Tensor growth_tracker_;  // int32 scalar: updates since the last change
  at::Tensor found_inf_;       // float32 scalar
};

}  // namespace ddprun
