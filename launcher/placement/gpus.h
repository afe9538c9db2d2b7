// The GPUs of this machine: by NVML where it is there, else from /proc and /dev. `root` is "" but
// in tests.
#pragma once

#include <string>
#include <vector>

#include "launcher/placement/nvml.h"

namespace ddprun::placement {

struct Gpu {
  std::string uuid;                 // "" where it could not be learnt
  std::string bus_id;               // likewise
  std::string name;                 // likewise
  int node = -1;                    // NUMA node next to it; -1: the machine does not say
  std::vector<std::string> slices;  // UUIDs of its MIG instances; empty: it is used whole
};

struct GpuList {
  std::vector<Gpu> gpus;  // in the order of the bus, as nvidia-smi numbers them
  std::string driver;     // version; "" without one
  std::string looked_at;  // what was found where, for a message
};

// `nvml` may be null.
GpuList ListGpus(const std::string& root, const Nvml* nvml, const std::string& why_no_nvml);

// "GPU 2 (GPU-1234…)", as in messages.
std::string NameOfGpu(const GpuList& list, int gpu);

}  // namespace ddprun::placement
