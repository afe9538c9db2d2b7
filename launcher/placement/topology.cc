#include "launcher/placement/topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"

namespace ddprun::placement {
namespace {

constexpr int kCpusMax = 8192;

// Sets an environment variable for as long as it lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value, 1);
  }
  ~ScopedVariable() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

int LowestCpu(hwloc_obj_t object) {
  return hwloc_bitmap_first(object->cpuset);
}

Cpu Describe(hwloc_obj_t pu) {
  Cpu cpu;
  cpu.cpu = static_cast<int>(pu->os_index);
  cpu.node = std::max(hwloc_bitmap_first(pu->nodeset), 0);
  cpu.core = cpu.cpu;
  hwloc_obj_t last_cache = nullptr;
  hwloc_obj_t holder_of_memory = nullptr;
  for (hwloc_obj_t above = pu->parent; above != nullptr; above = above->parent) {
    if (above->type == HWLOC_OBJ_CORE) cpu.core = LowestCpu(above);
    if (above->type == HWLOC_OBJ_PACKAGE) cpu.package = static_cast<int>(above->os_index);
    if (hwloc_obj_type_is_dcache(above->type) &&
        (last_cache == nullptr || above->attr->cache.depth > last_cache->attr->cache.depth)) {
      last_cache = above;
    }
    if (holder_of_memory == nullptr && above->memory_arity > 0) holder_of_memory = above;
  }
  const hwloc_obj_t shared = last_cache != nullptr ? last_cache : holder_of_memory;
  cpu.cache = shared != nullptr ? LowestCpu(shared) : cpu.cpu;
  return cpu;
}

using Prepare = int (*)(hwloc_topology_t, const std::string&);

absl::StatusOr<Topology> Load(const std::string& source, Prepare prepare) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return absl::ErrnoToStatus(errno, "hwloc_topology_init");
  // CPUs that we may not use are kept: what is allowed is looked up when workers are placed.
  hwloc_topology_set_flags(
      raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
  // It asks each CPU in turn by moving there; the kernel's files say all that is needed.
  hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
  if (prepare(raw, source) != 0 || hwloc_topology_load(raw) != 0) {
    const int error = errno;
    hwloc_topology_destroy(raw);
    return absl::ErrnoToStatus(error, absl::StrCat("hwloc cannot read the topology ", source));
  }
  Topology topology;
  for (hwloc_obj_t pu = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_PU, nullptr); pu != nullptr;
       pu = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_PU, pu)) {
    topology.cpus.push_back(Describe(pu));
  }
  hwloc_topology_destroy(raw);
  std::sort(topology.cpus.begin(), topology.cpus.end(),
            [](const Cpu& a, const Cpu& b) { return a.cpu < b.cpu; });
  return topology;
}

}  // namespace

absl::StatusOr<Topology> ReadTopology() {
  // Plugins of an hwloc that is installed here are not those of the one linked in, and some start
  // CUDA.
  const ScopedVariable without_plugins("HWLOC_PLUGINS_PATH", "");
  const ScopedVariable without_complaints("HWLOC_HIDE_ERRORS", "2");
  return Load("of this machine", [](hwloc_topology_t, const std::string&) { return 0; });
}

absl::StatusOr<Topology> TopologyFromText(const std::string& synthetic) {
  return Load(synthetic, [](hwloc_topology_t raw, const std::string& text) {
    return hwloc_topology_set_synthetic(raw, text.c_str());
  });
}

std::vector<int> NodesOf(const Topology& topology, const CpuList& allowed) {
  std::set<int> nodes;
  for (const Cpu& cpu : topology.cpus) {
    if (std::binary_search(allowed.begin(), allowed.end(), cpu.cpu)) nodes.insert(cpu.node);
  }
  return {nodes.begin(), nodes.end()};
}

size_t CountCores(const Topology& topology, const CpuList& cpus) {
  std::set<int> cores;
  for (const Cpu& cpu : topology.cpus) {
    if (std::binary_search(cpus.begin(), cpus.end(), cpu.cpu)) cores.insert(cpu.core);
  }
  return cores.size();
}

CpuList AllowedCpus() {
  CpuList cpus;
  cpu_set_t* set = CPU_ALLOC(kCpusMax);
  if (set == nullptr) return cpus;
  const size_t bytes = CPU_ALLOC_SIZE(kCpusMax);
  CPU_ZERO_S(bytes, set);
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (int cpu = 0; cpu < kCpusMax; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
    }
  }
  CPU_FREE(set);
  return cpus;
}

std::string FormatCpus(const CpuList& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", cpus[i]);
    if (last > i) absl::StrAppend(&text, "-", cpus[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace ddprun::placement
