// What this machine offers: cores and GPUs. Reads /proc, /sys and /dev; starts no CUDA, which would
// take a second and a GPU's memory. `root` is "" but in tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::cli {

struct Gpus {
  uint32_t usable = 0;    // devices here, and not hidden by CUDA_VISIBLE_DEVICES
  std::string looked_at;  // what was found where, for a message
  std::string driver;     // version; "" without a driver
};

Gpus LookForGpus(const std::string& root, const std::optional<std::string>& visible_devices);

// Cores that this process may use: its affinity and the CPU quota of its cgroups, at least 1.
uint32_t CoresAvailable(const std::string& root);

}  // namespace ddprun::cli
