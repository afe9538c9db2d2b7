#include "worker/trainer/autocast.h"

#include <ATen/autocast_mode.h>

namespace ddprun {

AutocastMode AutocastModeOf(const TrainConfig& config, const at::Device& device) {
  return {.enabled = config.precision_amp != "off",
          .dtype = config.precision_amp == "fp16" ? at::kHalf : at::kBFloat16,
          .device = device.type()};
}

AutocastScope::AutocastScope(const AutocastMode& mode)
    : device_(mode.device),
      previous_enabled_(at::autocast::is_autocast_enabled(mode.device)),
      previous_dtype_(at::autocast::get_autocast_dtype(mode.device)) {
  at::autocast::set_autocast_enabled(device_, mode.enabled);
  at::autocast::set_autocast_dtype(device_, mode.dtype);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device_, previous_dtype_);
  at::autocast::set_autocast_enabled(device_, previous_enabled_);
}

}  // namespace ddprun
