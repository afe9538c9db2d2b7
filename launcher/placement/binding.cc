#include "launcher/placement/binding.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ddprun::placement {
namespace {

constexpr std::array<std::pair<const char*, Binding>, 5> kNames = {{
    {"none", Binding::kNone},
    {"node", Binding::kNode},
    {"socket", Binding::kSocket},
    {"exclusive", Binding::kExclusive},
    {"core-complex", Binding::kCoreComplex},
}};

// What of the machine is allowed.
struct Ground {
  std::vector<Cpu> cpus;
  std::map<int, std::vector<int>> cores_of_node;  // each core by its lowest CPU
};

Ground Restrict(const Topology& topology, const CpuList& allowed) {
  Ground ground;
  for (const Cpu& cpu : topology.cpus) {
    if (!std::binary_search(allowed.begin(), allowed.end(), cpu.cpu)) continue;
    ground.cpus.push_back(cpu);
    std::vector<int>& cores = ground.cores_of_node[cpu.node];
    if (std::find(cores.begin(), cores.end(), cpu.core) == cores.end()) cores.push_back(cpu.core);
  }
  return ground;
}

// Gives each worker a node: its device's, else one by the nodes' free cores, neighbours together.
std::vector<int> ChooseNodes(const Ground& ground, const std::vector<int>& device_nodes,
                             std::vector<std::string>* notes) {
  std::vector<int> nodes = device_nodes;
  std::map<int, size_t> workers_of_node;
  std::vector<size_t> open;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (ground.cores_of_node.contains(nodes[i])) {
      ++workers_of_node[nodes[i]];
      continue;
    }
    if (nodes[i] != kNodeUnknown) {
      notes->push_back(absl::StrCat("the GPU of local rank ", i, " is next to NUMA node ", nodes[i],
                                    ", of which no CPU may be used here (taskset, or the "
                                    "container's cpuset): it gets CPUs of another node"));
    }
    open.push_back(i);
  }
  std::vector<int> given;
  for (size_t k = 0; k < open.size(); ++k) {
    int best = ground.cores_of_node.begin()->first;
    const auto load = [&](int node) {
      return static_cast<double>(workers_of_node[node] + 1) /
             static_cast<double>(ground.cores_of_node.at(node).size());
    };
    for (const auto& [node, cores] : ground.cores_of_node) {
      if (load(node) < load(best)) best = node;
    }
    ++workers_of_node[best];
    given.push_back(best);
  }
  std::sort(given.begin(), given.end());
  for (size_t k = 0; k < open.size(); ++k) nodes[open[k]] = given[k];
  return nodes;
}

template <typename Condition>
CpuList Pick(const Ground& ground, Condition condition) {
  CpuList cpus;
  for (const Cpu& cpu : ground.cpus) {
    if (condition(cpu)) cpus.push_back(cpu.cpu);
  }
  return cpus;
}

CpuList SocketOf(const Ground& ground, int node) {
  const auto first = std::find_if(ground.cpus.begin(), ground.cpus.end(),
                                  [node](const Cpu& cpu) { return cpu.node == node; });
  return Pick(ground, [first](const Cpu& cpu) { return cpu.package == first->package; });
}

// The `place`-th of `count` shares of the node's cores; the first ones are larger by a core where
// it does not come out even.
CpuList ShareOf(const Ground& ground, int node, size_t place, size_t count) {
  const std::vector<int>& cores = ground.cores_of_node.at(node);
  const size_t each = cores.size() / count;
  const size_t larger = cores.size() % count;
  const size_t begin = place * each + std::min(place, larger);
  const size_t end = begin + each + (place < larger ? 1 : 0);
  return Pick(ground, [&](const Cpu& cpu) {
    const auto core =
        static_cast<size_t>(std::find(cores.begin(), cores.end(), cpu.core) - cores.begin());
    return cpu.node == node && core >= begin && core < end;
  });
}

// Caches with more CPUs come first.
CpuList CoreComplexOf(const Ground& ground, int node, size_t place) {
  std::map<int, CpuList> by_cache;
  for (const Cpu& cpu : ground.cpus) {
    if (cpu.node == node) by_cache[cpu.cache].push_back(cpu.cpu);
  }
  std::vector<CpuList> complexes;
  complexes.reserve(by_cache.size());
  for (auto& [cache, cpus] : by_cache) complexes.push_back(std::move(cpus));
  std::stable_sort(complexes.begin(), complexes.end(),
                   [](const CpuList& a, const CpuList& b) { return a.size() > b.size(); });
  return complexes[place % complexes.size()];
}

}  // namespace

absl::StatusOr<Binding> ParseBinding(const std::string& text) {
  for (const auto& [name, binding] : kNames) {
    if (text == name) return binding;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--cpu-binding ", text, ": give none, node, socket, exclusive or core-complex"));
}

const char* BindingName(Binding binding) {
  for (const auto& [name, value] : kNames) {
    if (value == binding) return name;
  }
  return "";
}

absl::StatusOr<Bindings> BindWorkers(const Topology& topology, const CpuList& allowed,
                                     const std::vector<int>& device_nodes, Binding binding) {
  Bindings bindings;
  bindings.workers.resize(device_nodes.size());
  const Ground ground = Restrict(topology, allowed);
  for (size_t i = 0; i < device_nodes.size(); ++i) bindings.workers[i].node = device_nodes[i];
  if (binding == Binding::kNone || ground.cpus.empty()) return bindings;
  const std::vector<int> nodes = ChooseNodes(ground, device_nodes, &bindings.notes);
  std::map<int, size_t> count;
  for (int node : nodes) ++count[node];
  std::map<int, size_t> placed;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const int node = nodes[i];
    const size_t place = placed[node]++;
    const size_t cores = ground.cores_of_node.at(node).size();
    BoundWorker& worker = bindings.workers[i];
    worker.node = node;
    switch (binding) {
      case Binding::kNone:
        break;
      case Binding::kNode:
        worker.cpus = Pick(ground, [node](const Cpu& cpu) { return cpu.node == node; });
        break;
      case Binding::kSocket:
        worker.cpus = SocketOf(ground, node);
        break;
      case Binding::kExclusive:
        if (cores < count[node]) {
          return absl::FailedPreconditionError(
              absl::StrCat("--cpu-binding exclusive: NUMA node ", node, " has ", cores,
                           " cores that may be used here, for ", count[node],
                           " workers; start fewer, or use --cpu-binding node"));
        }
        worker.cpus = ShareOf(ground, node, place, count[node]);
        break;
      case Binding::kCoreComplex:
        worker.cpus = CoreComplexOf(ground, node, place);
        break;
    }
  }
  return bindings;
}

}  // namespace ddprun::placement
