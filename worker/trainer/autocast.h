// Autocast: in a scope, LibTorch computes what is safe in 16 bits (convolutions, matrix products)
// in bf16 or fp16, and the rest in float32. Weights stay float32; each is cast once a scope.
//
// Backward is called outside of it and computes in the types of the forward. LibTorch keeps the
// state by thread, and a part of it is not carried into backward threads, so whoever computes
// forward again there opens a scope of its own (TR35). Scopes nest; the end of the outermost one
// drops the casted weights, as they are another step's after the update. One scope belongs to one
// thread.
#pragma once

#include <torch/torch.h>

#include "common/config/train_config.h"

namespace ddprun {

struct AutocastMode {
  bool enabled = false;
  at::ScalarType dtype = at::kBFloat16;
  at::DeviceType device = at::kCPU;
};

// precision.amp on this device.
AutocastMode AutocastModeOf(const TrainConfig& config, const at::Device& device);

class AutocastScope {
 public:
  // Not enabled: autocast is off in the scope, whatever it is outside.
  explicit AutocastScope(const AutocastMode& mode);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const at::DeviceType device_;
  const bool previous_enabled_;
  const at::ScalarType previous_dtype_;
};

}  // namespace ddprun
