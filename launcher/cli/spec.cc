#include "launcher/cli/spec.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "launcher/cli/devices.h"
#include "launcher/cli/meeting.h"

namespace ddprun::cli {
namespace {

constexpr double kSeveralNodesLeaseSeconds = 3;
constexpr double kAddressCheckSeconds = 5;
constexpr double kLeaseSecondsMin = 0.2;  // heartbeats come four times in a lease

absl::Status FillSizes(const Options& o, const Surroundings& here, const v1::JobSpec* before,
                       RunPlan* plan) {
  v1::JobSpec& spec = plan->spec;
  const bool several = SeveralNodes(o);
  spec.set_nodes_min(o.nodes_min.value_or(several && before != nullptr ? before->nodes_min() : 1));
  spec.set_nodes_max(o.nodes_max.value_or(several && before != nullptr ? before->nodes_max() : 1));
  uint32_t count = before != nullptr ? before->processes_per_node() : 0;
  if (o.processes) {
    absl::StatusOr<uint32_t> counted = CountProcesses(*o.processes, here, o);
    if (!counted.ok()) return counted.status();
    // The same command on each node, which may have other numbers of workers: each offers its own.
    count = several && o.command == Command::kRun ? 0 : *counted;
  } else if (several && o.command == Command::kRun) {
    count = 0;
  } else if (count == 0 && !several) {
    count = 1;
  }
  spec.set_processes_per_node(count);
  if (spec.nodes_min() == spec.nodes_max()) plan->world_size = count * spec.nodes_max();
  if (o.log_ranks) {
    spec.mutable_log_ranks()->Assign(o.log_ranks->begin(), o.log_ranks->end());
  } else if (before != nullptr) {
    *spec.mutable_log_ranks() = before->log_ranks();
  }
  for (uint32_t rank : spec.log_ranks()) {
    if (o.log_ranks && plan->world_size != 0 && rank >= plan->world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("--log-ranks ", rank, ": there are ranks 0 to ", plan->world_size - 1));
    }
  }
  return absl::OkStatus();
}

void FillMembership(const Options& o, const v1::JobSpec* before, v1::JobSpec* spec) {
  v1::Membership* membership = spec->mutable_membership();
  if (before != nullptr) {
    membership->set_wait_for_replacement(before->membership().wait_for_replacement());
    membership->set_keep_size(before->membership().keep_size());
  }
  if (o.wait_for_replacement) membership->set_wait_for_replacement(*o.wait_for_replacement);
  if (o.keep_size) membership->set_keep_size(*o.keep_size);
  if (SeveralNodes(o)) membership->set_address_check_seconds(kAddressCheckSeconds);
}

absl::Status FillLease(const Options& o, v1::JobSpec* spec) {
  const double lease = o.lease_seconds.value_or(SeveralNodes(o) ? kSeveralNodesLeaseSeconds : 0);
  if (lease != 0 && lease < kLeaseSecondsMin) {
    return absl::InvalidArgumentError(
        absl::StrCat("--lease ", lease, ": give at least ", kLeaseSecondsMin, ", or 0 for none"));
  }
  spec->set_lease_seconds(lease);
  return absl::OkStatus();
}

constexpr char kUnbuffered[] = "PYTHONUNBUFFERED";

void FillEnvironment(const Options& o, const Surroundings& here, RunPlan* plan) {
  v1::JobSpec& spec = plan->spec;
  auto& environment = *spec.mutable_environment();
  std::vector<std::string> odd;
  for (const auto& [name, value] : here.environment) {
    // Speaks of this machine's GPUs; an agent elsewhere has its own.
    const bool elsewhere = o.command == Command::kCoordinator || o.hosts;
    if (elsewhere && name == "CUDA_VISIBLE_DEVICES") continue;
    if (IsUtf8(name)) {
      environment[name] = value;
    } else {
      odd.push_back(ShownBytes(name));
    }
  }
  if (!odd.empty()) {
    plan->notes.push_back(absl::StrCat(
        "variables whose names are not UTF-8 are left out of the workers' environment: ",
        absl::StrJoin(odd, ", ")));
  }
  auto add = [&](const std::string& name, const std::string& value) {
    environment[name] = value;
    plan->variables.push_back(absl::StrCat(name, "=", value));
  };
  if (!environment.contains(kUnbuffered)) add(kUnbuffered, "1");
  spec.mutable_launching()->set_choose_omp_threads(!environment.contains("OMP_NUM_THREADS"));
}

}  // namespace

std::map<std::string, std::string> OwnWorkerEnvironment(const Surroundings& here) {
  std::map<std::string, std::string> environment = here.environment;
  environment.emplace(kUnbuffered, "1");
  return environment;
}

absl::StatusOr<uint32_t> CountProcesses(const Processes& processes, const Surroundings& here,
                                        const Options& options) {
  const uint32_t gpus =
      options.gpus ? static_cast<uint32_t>(options.gpus->size()) : here.gpus.usable;
  const bool cpu = options.device.value_or("auto") == "cpu";
  switch (processes.kind) {
    case Processes::Kind::kNumber:
      return processes.number;
    case Processes::Kind::kCpus:
      return here.cores;
    case Processes::Kind::kAuto:
      return gpus > 0 && !cpu ? gpus : here.cores;
    case Processes::Kind::kGpus:
      if (gpus > 0) return gpus;
      return absl::InvalidArgumentError(
          absl::StrCat("--nproc gpu: no GPU can be used here: ", here.gpus.looked_at,
                       "; give a number, or cpu (", here.cores, " here)"));
  }
  return absl::InvalidArgumentError("--nproc: no such kind");
}

absl::Status FillSpec(const Options& options, const Surroundings& here, const v1::JobSpec* previous,
                      RunPlan* plan) {
  plan->notes.insert(plan->notes.end(), options.notes.begin(), options.notes.end());
  const auto counted = CountProcesses(options.processes.value_or(Processes{}), here, options);
  const uint32_t own = counted.ok() ? *counted : 1;
  FillPolicies(options, previous, &plan->spec);
  FillSupervision(options, previous, &plan->spec);
  absl::Status status = FillDevice(options, here, previous, plan);
  if (status.ok()) status = FillSizes(options, here, previous, plan);
  if (status.ok()) FillMembership(options, previous, &plan->spec);
  if (status.ok()) status = FillLease(options, &plan->spec);
  if (status.ok()) status = FillLogging(options, previous, own, &plan->spec);
  if (status.ok()) status = FillLaunching(options, here, previous, plan);
  if (status.ok()) FillEnvironment(options, here, plan);
  if (status.ok()) status = FillPlaces(options, here, plan);
  return status;
}

bool IsUtf8(const std::string& text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xC2 && lead < 0xE0 ? 2
                          : lead >= 0xE0 && lead < 0xF0 ? 3
                          : lead >= 0xF0 && lead < 0xF5 ? 4
                                                        : 0;
    if (length == 0 || i + length > text.size()) return false;
    uint32_t code = length == 1 ? lead : lead & (0xFFu >> (length + 1));
    for (size_t k = 1; k < length; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + k]);
      if ((byte & 0xC0) != 0x80) return false;
      code = (code << 6) | (byte & 0x3Fu);
    }
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    if (surrogate || overlong || code > 0x10FFFF) return false;
    i += length;
  }
  return true;
}

std::string ShownBytes(const std::string& text) {
  return absl::CHexEscape(text);
}

absl::StatusOr<std::string> ResolveLink(const std::string& path) {
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::canonical(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  return resolved.string();
}

}  // namespace ddprun::cli
