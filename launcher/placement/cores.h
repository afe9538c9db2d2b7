// Cores that this process may use. `root` is "" but in tests.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::placement {

// CPU time that the cgroups of this process allow, in cores; infinity without a quota.
double CpuQuota(const std::string& root);

// Its affinity and that quota, at least 1. A part of a core is no core for a worker that computes.
uint32_t CoresAvailable(const std::string& root);

}  // namespace ddprun::placement
