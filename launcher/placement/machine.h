// What this machine offers to workers: GPUs, processors, and what of both this process may use. A
// value, looked up once when ddprun starts. LookAtMachine reads /proc, /sys and /dev, asks NVML and
// hwloc, and starts no CUDA; call it before there are threads.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "launcher/placement/gpus.h"
#include "launcher/placement/nvml.h"
#include "launcher/placement/topology.h"

namespace ddprun::placement {

struct Machine {
  GpuList gpus;
  std::optional<std::string> visible_devices;  // CUDA_VISIBLE_DEVICES of this process
  bool bus_order = false;                      // CUDA_DEVICE_ORDER=PCI_BUS_ID
  Topology topology;                           // empty: hwloc could not read it
  CpuList allowed;                             // affinity of this process
  double cpu_quota = std::numeric_limits<double>::infinity();
  std::shared_ptr<Nvml> nvml;  // null without a driver
};

// `root` is "" but in tests.
Machine LookAtMachine(const std::string& root, const std::optional<std::string>& visible_devices,
                      const std::string& device_order);

// Whole cores that a process here may use: allowed CPUs and quota, at least 1.
uint32_t CoresOf(const Machine& machine);

}  // namespace ddprun::placement
