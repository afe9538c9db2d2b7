#include "launcher/agent/worker_environment.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ddprun::agent {
namespace {

using Environment = std::map<std::string, std::string>;

std::string MasterAddress(const v1::StartWorkers& order) {
  const std::string& wished = order.spec().launching().master_address();
  return wished.empty() ? order.master_address() : wished;
}

// An IPv6 address stands in brackets before a port.
std::string Endpoint(const std::string& host, uint32_t port) {
  const bool six = host.find(':') != std::string::npos;
  return absl::StrCat(six ? "[" : "", host, six ? "]:" : ":", port);
}

// torchrun's virtual local rank: the worker's GPU is the only one that it sees.
void AddVirtualDevice(uint32_t local_rank, Environment& environment) {
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  if (visible == environment.end()) {
    environment["CUDA_VISIBLE_DEVICES"] = absl::StrCat(local_rank);
    return;
  }
  const std::vector<std::string> devices = absl::StrSplit(visible->second, ',');
  if (local_rank < devices.size()) visible->second = devices[local_rank];
}

void AddTorchruns(const v1::StartWorkers& order, uint32_t rank, uint32_t local_rank, uint32_t port,
                  Environment& environment) {
  const v1::Launching& launching = order.spec().launching();
  auto set = [&environment](const char* name, auto value) {
    environment[name] = absl::StrCat(value);
  };
  set("RANK", rank);
  set("LOCAL_RANK", launching.virtual_local_rank() ? 0 : local_rank);
  set("WORLD_SIZE", order.world_size());
  set("LOCAL_WORLD_SIZE", order.local_world_size());
  set("GROUP_RANK", order.group_rank());
  set("GROUP_WORLD_SIZE", order.group_world_size());
  set("ROLE_RANK", rank);
  set("ROLE_NAME", launching.role().empty() ? "default" : launching.role());
  set("ROLE_WORLD_SIZE", order.world_size());
  set("MASTER_ADDR", MasterAddress(order));
  set("MASTER_PORT", port);
  set("TORCHELASTIC_RUN_ID", order.job_id());
  set("TORCHELASTIC_RESTART_COUNT", order.restart_count());
  set("TORCHELASTIC_MAX_RESTARTS", order.spec().restart().max_restarts());
  // True would make workers look for a store that the launcher holds; rank 0 holds it.
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("TORCHELASTIC_ERROR_FILE", ErrorFilePath(order, rank));
  environment.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  for (const auto& [name, value] : launching.torchrun_environment()) environment[name] = value;
}

// Where the flight recorder of PyTorch's NCCL group leaves its dumps: beside the logs, unless the
// user has chosen a place by either of its names (the first is the newer one).
void AddFlightRecorder(const v1::StartWorkers& order, Environment& environment) {
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

// Paddle's names for the ranks: each has its own node's address, and a port by its rank.
std::string PaddleEndpoint(const std::string& host, uint32_t port, uint32_t rank) {
  return Endpoint(host, port + 1 + rank);
}

// "" where they are not all known.
std::string PaddleEndpoints(const v1::StartWorkers& order, uint32_t port) {
  std::vector<std::string> endpoints;
  if (order.world_size() > kPaddleRanksMax) return "";
  if (order.group_world_size() == 1) {
    for (uint32_t i = 0; i < order.world_size(); ++i) {
      endpoints.push_back(PaddleEndpoint(MasterAddress(order), port, i));
    }
    return absl::StrJoin(endpoints, ",");
  }
  for (const v1::NodePlace& place : order.nodes()) {
    for (uint32_t i = 0; i < place.count() && endpoints.size() < order.world_size(); ++i) {
      endpoints.push_back(PaddleEndpoint(place.address(), port, place.first_rank() + i));
    }
  }
  return absl::StrJoin(endpoints, ",");
}

// Paddle's way to say the same things. Its endpoints are names for ranks, on which it opens ports
// of its own; PADDLE_MASTER is where rank 0 holds the store, at the port that is held for it.
void AddPaddles(const v1::StartWorkers& order, const NodeFacts& node, uint32_t rank,
                uint32_t local_rank, uint32_t port, Environment& environment) {
  const std::string host = MasterAddress(order);
  auto set = [&environment](const char* name, auto value) {
    environment[name] = absl::StrCat(value);
  };
  set("PADDLE_MASTER", Endpoint(host, port));
  set("PADDLE_GLOBAL_SIZE", order.world_size());
  set("PADDLE_LOCAL_SIZE", order.local_world_size());
  set("PADDLE_GLOBAL_RANK", rank);
  set("PADDLE_LOCAL_RANK", local_rank);
  set("PADDLE_NNODES", order.group_world_size());
  set("PADDLE_TRAINER_ID", rank);
  set("PADDLE_TRAINERS_NUM", order.world_size());
  set("PADDLE_RANK_IN_NODE", local_rank);
  environment.emplace("POD_NAME", node.node);  // Kubernetes may have said it already
  if (order.spec().device() == "cuda") {
    set("FLAGS_selected_gpus", order.spec().launching().virtual_local_rank() ? 0 : local_rank);
  } else {
    environment.emplace("PADDLE_DISTRI_BACKEND", "gloo");
  }
  const bool alone = order.group_world_size() == 1 || node.address.empty();
  set("PADDLE_CURRENT_ENDPOINT", PaddleEndpoint(alone ? host : node.address, port, rank));
  const std::string endpoints = PaddleEndpoints(order, port);
  if (!endpoints.empty()) set("PADDLE_TRAINER_ENDPOINTS", endpoints);
}

void AddOurs(const v1::StartWorkers& order, Environment& environment) {
  const v1::JobSpec& spec = order.spec();
  environment["DDPRUN_JOB_ID"] = order.job_id();
  environment["DDPRUN_GENERATION"] = absl::StrCat(order.generation());
  environment["DDPRUN_RUN_DIR"] = spec.run_dir();
  environment["DDPRUN_STATE_DIR"] = absl::StrCat(spec.run_dir(), "/state");
  environment["DDPRUN_RESUME_FROM"] = order.resume_from();
  environment["DDPRUN_RESUME_STEP"] = absl::StrCat(order.resume_step());
  if (!spec.train_config_json().empty()) {
    environment["DDPRUN_TRAIN_CONFIG"] = spec.train_config_json();
    environment["DDPRUN_DEVICE"] = spec.device();
  }
}

}  // namespace

std::map<std::string, std::string> WorkerEnvironment(const v1::StartWorkers& order,
                                                     const NodeFacts& node, uint32_t local_rank) {
  Environment environment(order.spec().environment().begin(), order.spec().environment().end());
  const uint32_t rank = order.first_rank() + local_rank;
  const uint32_t port = order.master_port() != 0 ? order.master_port() : node.master_port;
  if (order.spec().launching().virtual_local_rank()) AddVirtualDevice(local_rank, environment);
  AddTorchruns(order, rank, local_rank, port, environment);
  AddFlightRecorder(order, environment);
  AddPaddles(order, node, rank, local_rank, port, environment);
  AddOurs(order, environment);
  if (local_rank < node.places.size()) {
    for (const auto& [name, value] : node.places[local_rank].variables) environment[name] = value;
  }
  return environment;
}

std::string ErrorFilePath(const v1::StartWorkers& order, uint32_t rank) {
  return absl::StrCat(order.spec().run_dir(), "/logs/g", order.generation(), "/rank", rank,
                      ".error.json");
}

}  // namespace ddprun::agent
