#include "launcher/agent/worker_spec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ddprun::agent {
namespace {

void Add(std::string& spec, const std::string& key, const std::string& value) {
  spec.append(key).append("=").append(value).push_back('\0');
}

// Paddle's way to say the same things. Its endpoints are names for ranks; it opens its own ports on
// them.
void AddPaddle(const v1::StartWorkers& order, uint32_t rank, uint32_t port,
               std::map<std::string, std::string>& environment) {
  environment["PADDLE_TRAINER_ID"] = absl::StrCat(rank);
  environment["PADDLE_TRAINERS_NUM"] = absl::StrCat(order.world_size());
  environment["PADDLE_CURRENT_ENDPOINT"] =
      absl::StrCat(order.master_address(), ":", port + 1 + rank);
  if (order.group_world_size() != 1 || order.world_size() > kPaddleRanksMax) return;
  std::string endpoints;
  for (uint32_t i = 0; i < order.world_size(); ++i) {
    absl::StrAppend(&endpoints, i == 0 ? "" : ",", order.master_address(), ":", port + 1 + i);
  }
  environment["PADDLE_TRAINER_ENDPOINTS"] = endpoints;
}

// Where the flight recorder of PyTorch's NCCL group leaves its dumps: beside the logs, unless the
// user has chosen a place by either of its names (the first is the newer one).
void AddFlightRecorder(const v1::StartWorkers& order,
                       std::map<std::string, std::string>& environment) {
  static constexpr const char* kNames[] = {"TORCH_FR_DUMP_TEMP_FILE",
                                           "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"};
  for (const char* name : kNames) {
    if (environment.contains(name)) return;
  }
  for (const char* name : kNames) {
    environment[name] = absl::StrCat(order.spec().run_dir(), "/logs/g", order.generation(), "/",
                                     kFlightRecorderPrefix);
  }
}

}  // namespace

std::map<std::string, std::string> WorkerEnvironment(const v1::StartWorkers& order,
                                                     const NodeFacts& node, uint32_t local_rank) {
  const v1::JobSpec& spec = order.spec();
  std::map<std::string, std::string> environment(spec.environment().begin(),
                                                 spec.environment().end());
  const uint32_t rank = order.first_rank() + local_rank;
  const uint32_t port = order.master_port() != 0 ? order.master_port() : node.master_port;
  const std::string world = absl::StrCat(order.world_size());
  auto set = [&environment](const char* name, auto value) {
    environment[name] = absl::StrCat(value);
  };
  set("RANK", rank);
  set("LOCAL_RANK", local_rank);
  set("WORLD_SIZE", world);
  set("LOCAL_WORLD_SIZE", order.local_world_size());
  set("GROUP_RANK", order.group_rank());
  set("GROUP_WORLD_SIZE", order.group_world_size());
  set("ROLE_RANK", rank);
  set("ROLE_NAME", "default");
  set("ROLE_WORLD_SIZE", world);
  set("MASTER_ADDR", order.master_address());
  set("MASTER_PORT", port);
  set("TORCHELASTIC_RUN_ID", order.job_id());
  set("TORCHELASTIC_RESTART_COUNT", order.restart_count());
  set("TORCHELASTIC_MAX_RESTARTS", spec.restart().max_restarts());
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("TORCHELASTIC_ERROR_FILE", ErrorFilePath(order, rank));
  AddFlightRecorder(order, environment);
  set("DDPRUN_JOB_ID", order.job_id());
  set("DDPRUN_GENERATION", order.generation());
  set("DDPRUN_RUN_DIR", spec.run_dir());
  set("DDPRUN_STATE_DIR", absl::StrCat(spec.run_dir(), "/state"));
  set("DDPRUN_RESUME_FROM", order.resume_from());
  set("DDPRUN_RESUME_STEP", order.resume_step());
  if (!spec.train_config_json().empty()) {
    environment["DDPRUN_TRAIN_CONFIG"] = spec.train_config_json();
    environment["DDPRUN_DEVICE"] = spec.device();
  }
  AddPaddle(order, rank, port, environment);
  if (local_rank < node.places.size()) {
    for (const auto& [name, value] : node.places[local_rank].variables) environment[name] = value;
  }
  return environment;
}

std::string LogPath(const v1::StartWorkers& order, uint32_t rank) {
  return absl::StrCat(order.spec().run_dir(), "/logs/g", order.generation(), "/rank", rank, ".log");
}

std::string ErrorFilePath(const v1::StartWorkers& order, uint32_t rank) {
  return absl::StrCat(order.spec().run_dir(), "/logs/g", order.generation(), "/rank", rank,
                      ".error.json");
}

bool ShownOnConsole(const v1::JobSpec& spec, uint32_t rank, uint32_t local_rank) {
  const auto& quiet = spec.logging().quiet_local_ranks();
  if (std::find(quiet.begin(), quiet.end(), local_rank) != quiet.end()) return false;
  return spec.log_ranks().empty() || std::find(spec.log_ranks().begin(), spec.log_ranks().end(),
                                               rank) != spec.log_ranks().end();
}

std::string MakeKeeperSpec(const v1::StartWorkers& order, const NodeFacts& node,
                           int64_t lease_milliseconds) {
  const v1::JobSpec& job = order.spec();
  std::string spec;
  Add(spec, "JOB", order.job_id());
  Add(spec, "GENERATION", absl::StrCat(order.generation()));
  Add(spec, "NODE", node.node);
  Add(spec, "GRACE_MS", absl::StrCat(static_cast<int64_t>(job.grace_seconds() * 1000)));
  Add(spec, "LEASE_MS", absl::StrCat(lease_milliseconds));
  Add(spec, "LOG_BYTES_MAX", absl::StrCat(job.logging().file_bytes_max()));
  Add(spec, "LOG_FILES_KEPT", absl::StrCat(job.logging().rotated_files_kept()));
  Add(spec, "LEASE_CLOCK", node.lease_monotonic ? "monotonic" : "boot");
  Add(spec, "HANG_MS",
      absl::StrCat(static_cast<int64_t>(job.supervision().hang_timeout_seconds() * 1000)));
  Add(spec, "FOREGROUND", "1");
  for (uint32_t local_rank = 0; local_rank < order.local_world_size(); ++local_rank) {
    const uint32_t rank = order.first_rank() + local_rank;
    Add(spec, "WORKER", absl::StrCat(rank));
    if (!job.train_config_json().empty()) {
      Add(spec, "ARG", node.worker_path);
    } else {
      for (const std::string& argument : job.program()) Add(spec, "ARG", argument);
    }
    for (const auto& [name, value] : WorkerEnvironment(order, node, local_rank)) {
      Add(spec, "ENV", absl::StrCat(name, "=", value));
    }
    if (local_rank < node.places.size() && !node.places[local_rank].cpus.empty()) {
      Add(spec, "CPUS", placement::FormatCpus(node.places[local_rank].cpus));
    }
    Add(spec, "CWD", job.working_dir());
    Add(spec, "LOG", LogPath(order, rank));
    Add(spec, "CONSOLE", ShownOnConsole(job, rank, local_rank) ? "1" : "0");
  }
  return spec;
}

}  // namespace ddprun::agent
