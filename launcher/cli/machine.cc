#include "launcher/cli/machine.h"

#include "absl/strings/str_cat.h"
#include "launcher/placement/visible.h"

namespace ddprun::cli {

Gpus SummarizeGpus(const placement::Machine& machine) {
  const std::optional<std::string>& variable = machine.visible_devices;
  Gpus gpus;
  gpus.usable = static_cast<uint32_t>(placement::VisibleDevices(machine.gpus, variable).size());
  gpus.driver = machine.gpus.driver;
  gpus.looked_at =
      absl::StrCat(machine.gpus.looked_at, ", CUDA_VISIBLE_DEVICES is ",
                   variable ? absl::StrCat("\"", *variable, "\"") : std::string("not set"));
  return gpus;
}

}  // namespace ddprun::cli
