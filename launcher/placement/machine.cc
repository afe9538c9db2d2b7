#include "launcher/placement/machine.h"

#include <algorithm>
#include <utility>

#include "launcher/placement/cores.h"

namespace ddprun::placement {

Machine LookAtMachine(const std::string& root, const std::optional<std::string>& visible_devices,
                      const std::string& device_order) {
  Machine machine;
  std::string why;
  machine.nvml = Nvml::Open(&why);
  machine.gpus = ListGpus(root, machine.nvml.get(), why);
  machine.visible_devices = visible_devices;
  machine.bus_order = device_order == "PCI_BUS_ID";
  absl::StatusOr<Topology> topology = ReadTopology();
  if (topology.ok()) machine.topology = *std::move(topology);
  machine.allowed = AllowedCpus();
  machine.cpu_quota = CpuQuota(root);
  return machine;
}

uint32_t CoresOf(const Machine& machine) {
  const auto cpus = static_cast<double>(machine.allowed.size());
  return static_cast<uint32_t>(std::max(1.0, std::min(cpus, machine.cpu_quota)));
}

}  // namespace ddprun::placement
