// What this machine offers, as the command line speaks of it: counts and a text for messages.
// launcher/placement knows the details.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/placement/machine.h"

namespace ddprun::cli {

struct Gpus {
  uint32_t usable = 0;    // devices here, and not hidden by CUDA_VISIBLE_DEVICES
  std::string looked_at;  // what was found where, for a message
  std::string driver;     // version; "" without a driver
};

Gpus SummarizeGpus(const placement::Machine& machine);

}  // namespace ddprun::cli
