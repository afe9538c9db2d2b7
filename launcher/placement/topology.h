// The processors of a machine as plain values: which logical CPU is on which core, cache, NUMA node
// and socket. Read by hwloc, once, or made up by tests from a text. (hwloc's own HWLOC_SYNTHETIC
// and HWLOC_XMLFILE make a whole ddprun believe in another machine; CPUs that are not there are
// never used.)
//
// ReadTopology changes an environment variable for the time of the call: call it before there are
// threads. Everything else is pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ddprun::placement {

using CpuList = std::vector<int>;  // ascending, each once

struct Cpu {
  int cpu = 0;  // as the kernel numbers it
  // Of each the lowest CPU stands for the whole.
  int core = 0;
  int cache = 0;    // the last-level cache; without one, the NUMA node
  int node = 0;     // NUMA node as the kernel numbers it
  int package = 0;  // socket
};

// Ascending by `cpu`. Empty: unknown.
struct Topology {
  std::vector<Cpu> cpus;
};

absl::StatusOr<Topology> ReadTopology();
absl::StatusOr<Topology> TopologyFromText(const std::string& synthetic);  // "numa:2 core:8 pu:2"

std::vector<int> NodesOf(const Topology& topology, const CpuList& allowed);  // with an allowed CPU
size_t CountCores(const Topology& topology, const CpuList& cpus);            // physical ones

// What the calling thread may run on: affinity, which a container's or job's cpuset limits.
CpuList AllowedCpus();
std::string FormatCpus(const CpuList& cpus);  // "0-3,8"

}  // namespace ddprun::placement
