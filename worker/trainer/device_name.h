// What a rank computes on, for the comparison of all ranks at the start. Any thread.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace ddprun {

// "NVIDIA H200", "AMD EPYC 9654 96-Core Processor, 4 threads".
std::string DeviceName(const at::Device& device);

// This host's name.
std::string HostName();

// One line where not all are the same: "ranks 0-3 on node-a: NVIDIA H200; ranks 4-7 on node-b: …";
// "" where they are. Pure.
std::string MixedDevices(const std::vector<std::string>& names,
                         const std::vector<std::string>& hosts);

}  // namespace ddprun
