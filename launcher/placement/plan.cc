#include "launcher/placement/plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ddprun::placement {
namespace {

// One turn of planning.
struct Work {
  const Machine& machine;
  const v1::JobSpec& spec;
  uint32_t workers;
  NodePlan plan;
};

bool IsTrainer(const v1::JobSpec& spec) {
  return !spec.train_config_json().empty();
}

absl::Status TooFewGpus(const Work& w, const char* who) {
  const size_t gpus = w.plan.devices.size();
  return absl::InvalidArgumentError(
      absl::StrCat("--nproc ", w.workers, ": ", gpus, " GPUs can be used, and ", who,
                   " needs one of its own; start at most ", gpus, ", or use --device cpu"));
}

// Without GPUs that we know of, --virtual-local-rank still does what torchrun does.
absl::Status PlaceUnknownDevices(Work& w) {
  std::vector<std::string> tokens;
  if (w.machine.visible_devices) tokens = absl::StrSplit(*w.machine.visible_devices, ',');
  for (uint32_t i = 0; i < w.workers; ++i) {
    if (w.machine.visible_devices && i >= tokens.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--virtual-local-rank: CUDA_VISIBLE_DEVICES=", *w.machine.visible_devices, " names ",
          tokens.size(), " devices for ", w.workers, " workers; start fewer, or unset it"));
    }
    w.plan.workers[i].variables["CUDA_VISIBLE_DEVICES"] =
        w.machine.visible_devices ? std::string(absl::StripAsciiWhitespace(tokens[i]))
                                  : absl::StrCat(i);
  }
  return absl::OkStatus();
}

absl::Status PlaceDevices(Work& w) {
  const std::vector<std::string> wished(w.spec.gpus().begin(), w.spec.gpus().end());
  if (w.spec.device() != "cuda") {
    return w.spec.launching().virtual_local_rank() ? PlaceUnknownDevices(w) : absl::OkStatus();
  }
  auto devices = ChooseDevices(w.machine.gpus, w.machine.visible_devices, wished);
  if (!devices.ok()) return devices.status();
  w.plan.devices = *std::move(devices);
  const std::vector<VisibleDevice>& chosen = w.plan.devices;
  const bool one_each = w.spec.launching().virtual_local_rank();
  if (w.workers > chosen.size()) {
    if (IsTrainer(w.spec)) return TooFewGpus(w, "each worker");
    if (one_each) return TooFewGpus(w, "with --virtual-local-rank each worker");
    if (!chosen.empty()) {
      w.plan.notes.push_back(absl::StrCat(
          w.workers, " workers share ", chosen.size(),
          " GPUs: a program that takes the GPU of its LOCAL_RANK finds none from rank ",
          chosen.size(), " on"));
    }
  }
  const auto slices =
      std::count_if(chosen.begin(), chosen.end(), [](const VisibleDevice& d) { return d.slice; });
  if (slices > 1 && !one_each) {
    w.plan.notes.push_back(
        absl::StrCat("CUDA shows a process only the first of these ", slices,
                     " MIG instances: --virtual-local-rank gives each worker one of its own"));
  }
  for (uint32_t i = 0; i < w.workers; ++i) {
    WorkerPlace& place = w.plan.workers[i];
    std::string value = VisibleVariable(w.machine.gpus, chosen, w.machine.bus_order);
    if (one_each) value = VisibleVariable(w.machine.gpus, {chosen[i]}, w.machine.bus_order);
    if (one_each || !wished.empty()) {
      place.variables["CUDA_VISIBLE_DEVICES"] = value;
    } else if (w.machine.visible_devices) {
      place.variables["CUDA_VISIBLE_DEVICES"] = *w.machine.visible_devices;
    }
    if (i >= chosen.size()) continue;
    const VisibleDevice& device = chosen[i];
    place.gpu = device.slice || device.gpu < 0 ? device.token : absl::StrCat("GPU ", device.gpu);
    // Which GPU an index means is CUDA's secret where models differ and are ordered by speed.
    const bool sure =
        device.gpu >= 0 && (SameOrder(w.machine.gpus, w.machine.bus_order) || one_each ||
                            !wished.empty() || device.token == device.uuid);
    if (sure) place.node = w.machine.gpus.gpus[static_cast<size_t>(device.gpu)].node;
  }
  return absl::OkStatus();
}

absl::Status PlaceCpus(Work& w) {
  const std::string& wish = w.spec.launching().cpu_binding();
  std::vector<int> device_nodes;
  device_nodes.reserve(w.plan.workers.size());
  for (const WorkerPlace& place : w.plan.workers) device_nodes.push_back(place.node);
  const size_t nodes = NodesOf(w.machine.topology, w.machine.allowed).size();
  if (wish.empty()) {
    // Near its GPU is where a worker belongs; where the kernel does not say what is near, or all is
    // equally near, there is nothing to gain.
    const bool known = std::any_of(device_nodes.begin(), device_nodes.end(),
                                   [](int node) { return node != kNodeUnknown; });
    if (known && nodes > 1) w.plan.binding = Binding::kNode;
  } else {
    const absl::StatusOr<Binding> binding = ParseBinding(wish);
    if (!binding.ok()) return binding.status();
    w.plan.binding = *binding;
  }
  if (w.plan.binding == Binding::kNone) return absl::OkStatus();
  if (w.machine.topology.cpus.empty()) {
    w.plan.notes.push_back("workers are not bound to CPUs: the machine's topology cannot be read");
    w.plan.binding = Binding::kNone;
    return absl::OkStatus();
  }
  auto bound = BindWorkers(w.machine.topology, w.machine.allowed, device_nodes, w.plan.binding);
  if (!bound.ok()) return bound.status();
  for (size_t i = 0; i < w.plan.workers.size(); ++i) {
    w.plan.workers[i].cpus = bound->workers[i].cpus;
    w.plan.workers[i].node = bound->workers[i].node;
  }
  w.plan.notes.insert(w.plan.notes.end(), bound->notes.begin(), bound->notes.end());
  return absl::OkStatus();
}

// Cores of this worker alone: those of its CPUs, divided among the workers that share them.
uint32_t ThreadsFor(const Work& w, const WorkerPlace& place) {
  const CpuList& cpus = place.cpus.empty() ? w.machine.allowed : place.cpus;
  size_t cores = CountCores(w.machine.topology, cpus);
  if (cores == 0) cores = cpus.size();
  const auto sharing =
      std::count_if(w.plan.workers.begin(), w.plan.workers.end(),
                    [&place](const WorkerPlace& other) { return other.cpus == place.cpus; });
  const double of_cores = static_cast<double>(cores) / static_cast<double>(sharing);
  const double of_quota = w.machine.cpu_quota / w.workers;
  return static_cast<uint32_t>(std::max(1.0, std::floor(std::min(of_cores, of_quota))));
}

void ChooseThreads(Work& w) {
  if (!w.spec.launching().choose_omp_threads() || w.workers == 0) return;
  constexpr const char* kVariable = "OMP_NUM_THREADS";
  constexpr const char* kOverride = " (set OMP_NUM_THREADS to choose)";
  if (IsTrainer(w.spec)) {
    // The number of threads is part of what makes two runs bit-identical: always one.
    if (w.workers == 1) return;
    for (WorkerPlace& place : w.plan.workers) place.variables[kVariable] = std::string("1");
    w.plan.threads = absl::StrCat(
        "OMP_NUM_THREADS=1 for each worker: results depend on it, so it is the same everywhere",
        kOverride);
    return;
  }
  const bool limited = w.machine.cpu_quota < static_cast<double>(w.machine.allowed.size());
  const bool bound = w.plan.binding != Binding::kNone;
  // One worker that may use the whole machine finds that out by itself.
  if (w.workers == 1 && !limited && !bound) return;
  uint32_t least = 0;
  uint32_t most = 0;
  for (WorkerPlace& place : w.plan.workers) {
    const uint32_t threads = ThreadsFor(w, place);
    place.variables[kVariable] = absl::StrCat(threads);
    least = least == 0 ? threads : std::min(least, threads);
    most = std::max(most, threads);
  }
  const size_t cores = CountCores(w.machine.topology, w.machine.allowed);
  w.plan.threads =
      absl::StrCat("OMP_NUM_THREADS=", least, least == most ? "" : absl::StrCat(" to ", most),
                   " for each worker: ", w.workers, w.workers == 1 ? " worker, " : " workers, ",
                   cores != 0 ? cores : w.machine.allowed.size(), " cores may be used",
                   bound ? absl::StrCat(", bound by ", BindingName(w.plan.binding)) : "",
                   limited ? absl::StrCat(", CPU quota ", w.machine.cpu_quota) : "", kOverride);
}

}  // namespace

absl::StatusOr<NodePlan> PlanNode(const Machine& machine, const v1::JobSpec& spec,
                                  uint32_t workers) {
  Work w{machine, spec, workers, {}};
  w.plan.workers.resize(workers);
  absl::Status status = PlaceDevices(w);
  if (status.ok()) status = PlaceCpus(w);
  if (!status.ok()) return status;
  ChooseThreads(w);
  return std::move(w.plan);
}

std::string DescribePlace(const WorkerPlace& place) {
  std::string text = place.gpu;
  const auto add = [&text](const std::string& part) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", part);
  };
  if (place.node != kNodeUnknown) add(absl::StrCat("NUMA node ", place.node));
  if (!place.cpus.empty()) add(absl::StrCat("CPUs ", FormatCpus(place.cpus)));
  return text;
}

}  // namespace ddprun::placement
