// Which CPUs each worker may use: topology, allowed CPUs, the NUMA nodes of the workers' devices
// and a wish → one list per worker. Pure.
//
// The wishes mean what torchrun's --numa-binding means. A worker without a device (or whose device
// is next to no CPU that is allowed here) is given a node in proportion to the nodes' cores.
// Invariants of a result: every list is a subset of `allowed`; none is empty unless the wish is
// kNone.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/placement/topology.h"

namespace ddprun::placement {

enum class Binding {
  kNone,
  kNode,         // all allowed CPUs of the device's NUMA node
  kSocket,       // all allowed CPUs of the device's socket
  kExclusive,    // a share of the node's physical cores that no other worker has
  kCoreComplex,  // the CPUs of one last-level cache of the node, another for each worker if
                 // possible
};

inline constexpr int kNodeUnknown = -1;

struct BoundWorker {
  int node = kNodeUnknown;  // whose CPUs it got
  CpuList cpus;             // empty: not bound
};

struct Bindings {
  std::vector<BoundWorker> workers;
  std::vector<std::string> notes;  // what could not be done as wished, one line each
};

// INVALID_ARGUMENT: no such binding.
absl::StatusOr<Binding> ParseBinding(const std::string& text);
const char* BindingName(Binding binding);

// `device_nodes`: for each worker the NUMA node of its device, or kNodeUnknown.
// FAILED_PRECONDITION: kExclusive with fewer cores on a node than workers.
absl::StatusOr<Bindings> BindWorkers(const Topology& topology, const CpuList& allowed,
                                     const std::vector<int>& device_nodes, Binding binding);

}  // namespace ddprun::placement
