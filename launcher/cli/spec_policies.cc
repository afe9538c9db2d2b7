// What becomes of failures, how workers are watched, logged and set up: defaults, what an earlier
// part of the job had, and what is given, in this order.
#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/cli/meeting.h"
#include "launcher/cli/spec.h"
#include "launcher/cli/supervision_values.h"
#include "launcher/cli/torchrun_values.h"

namespace ddprun::cli {
namespace {

constexpr uint32_t kMaxRestarts = 3;
constexpr double kMinUptimeSeconds = 30;
constexpr uint32_t kStartFailuresLimit = 3;
constexpr uint32_t kNoProgressLimit = 3;
constexpr uint32_t kFreeRestartsLimit = 100;
constexpr double kBackoffBaseSeconds = 1;
constexpr double kBackoffMaxSeconds = 60;
constexpr double kGraceSeconds = 30;
constexpr double kJoinTimeoutSeconds = 600;
// The trainer moves every step; a program that says nothing may well be silent for a day.
constexpr double kTrainerHangSeconds = 1800;
constexpr double kTrainerInitSeconds = 1800;
constexpr double kHealthCheckSeconds = 60;
constexpr uint32_t kSeveralNodesStrikes = 3;
constexpr double kCooldownSeconds = 300;
constexpr double kGpuMemoryWaitSeconds = 60;

constexpr char kSignalsVariable[] = "TORCHELASTIC_SIGNALS_TO_HANDLE";
constexpr char kTorchrunsSignals[] = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

std::string SignalNames(const std::vector<int32_t>& signals) {
  return absl::StrJoin(signals, ",",
                       [](std::string* out, int32_t signal) { out->append(SignalName(signal)); });
}

// The value given, else what is there already.
template <typename Value, typename Set>
void Override(const std::optional<Value>& given, Set set) {
  if (given) set(*given);
}

void SetDefaults(const Options& o, bool trainer, v1::Supervision* s) {
  s->set_hang_timeout_seconds(trainer ? kTrainerHangSeconds : 0);
  s->set_init_timeout_seconds(trainer ? kTrainerInitSeconds : 0);
  s->set_health_check_timeout_seconds(kHealthCheckSeconds);
  s->set_node_strikes_limit(SeveralNodes(o) ? kSeveralNodesStrikes : 0);
  s->set_node_cooldown_seconds(kCooldownSeconds);
  s->set_gpu_memory_wait_seconds(kGpuMemoryWaitSeconds);
  s->add_forwarded_signals(SIGUSR2);
}

// A signal that stops the job is not passed on, unless both were asked for (CheckCombination).
void DropStopSignals(const std::vector<int32_t>& stops, v1::Supervision* s) {
  auto* forwarded = s->mutable_forwarded_signals();
  forwarded->erase(std::remove_if(forwarded->begin(), forwarded->end(),
                                  [&](int32_t signal) {
                                    return std::find(stops.begin(), stops.end(), signal) !=
                                           stops.end();
                                  }),
                   forwarded->end());
}

// Variables of torchrun's agent that nothing here answers.
void NoteUnusedVariables(const Surroundings& here, RunPlan* plan) {
  if (here.Variable("TORCHELASTIC_ENABLE_FILE_TIMER") == "1") {
    plan->notes.push_back(
        "TORCHELASTIC_ENABLE_FILE_TIMER=1: nothing here listens to torch's timers; see "
        "--hang-timeout");
  }
  if (!here.Variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").empty()) {
    plan->notes.push_back(
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE: lines are marked [rank] here, always");
  }
}

}  // namespace

void FillPolicies(const Options& o, const v1::JobSpec* before, v1::JobSpec* spec) {
  auto* restart = spec->mutable_restart();
  if (before != nullptr && before->has_restart()) {
    *restart = before->restart();
  } else {
    restart->set_max_restarts(kMaxRestarts);
    restart->set_min_uptime_seconds(kMinUptimeSeconds);
  }
  if (o.max_restarts) {
    restart->set_max_restarts(*o.max_restarts);
    restart->set_max_restarts_given(true);
  }
  Override(o.min_uptime_seconds, [&](double v) { restart->set_min_uptime_seconds(v); });
  Override(o.restart_window_seconds, [&](double v) { restart->set_window_seconds(v); });
  Override(o.restart_on, [&](const std::vector<int32_t>& v) {
    restart->mutable_restart_on()->Assign(v.begin(), v.end());
  });
  Override(o.no_restart_on, [&](const std::vector<int32_t>& v) {
    restart->mutable_no_restart_on()->Assign(v.begin(), v.end());
  });
  restart->set_start_failures_limit(kStartFailuresLimit);
  restart->set_no_progress_limit(kNoProgressLimit);
  restart->set_free_restarts_limit(kFreeRestartsLimit);
  restart->set_backoff_base_seconds(kBackoffBaseSeconds);
  restart->set_backoff_max_seconds(kBackoffMaxSeconds);
  const double grace = before != nullptr ? before->grace_seconds() : kGraceSeconds;
  spec->set_grace_seconds(o.grace_seconds.value_or(grace));
  double join = before != nullptr && before->join_timeout_seconds() > 0
                    ? before->join_timeout_seconds()
                    : kJoinTimeoutSeconds;
  if (o.torchrun.join_timeout_seconds) join = *o.torchrun.join_timeout_seconds;
  spec->set_join_timeout_seconds(o.join_timeout_seconds.value_or(join));
  // Of this run of ddprun: an earlier part's is over.
  spec->set_time_limit_seconds(o.time_limit_seconds.value_or(0));
}

void FillSupervision(const Options& o, const v1::JobSpec* before, v1::JobSpec* spec) {
  v1::Supervision* s = spec->mutable_supervision();
  if (before != nullptr && before->has_supervision()) {
    *s = before->supervision();
  } else {
    SetDefaults(o, !spec->train_config_json().empty(), s);
  }
  Override(o.hang_timeout_seconds, [&](double v) { s->set_hang_timeout_seconds(v); });
  Override(o.init_timeout_seconds, [&](double v) { s->set_init_timeout_seconds(v); });
  Override(o.health_check, [&](const std::string& v) { s->set_health_check(v); });
  Override(o.health_check_timeout_seconds,
           [&](double v) { s->set_health_check_timeout_seconds(v); });
  Override(o.on_failure, [&](const std::string& v) { s->set_on_failure(v); });
  Override(o.on_finish, [&](const std::string& v) { s->set_on_finish(v); });
  Override(o.node_strikes, [&](uint32_t v) { s->set_node_strikes_limit(v); });
  Override(o.node_cooldown_seconds, [&](double v) { s->set_node_cooldown_seconds(v); });
  Override(o.gpu_memory_wait_seconds, [&](double v) { s->set_gpu_memory_wait_seconds(v); });
  Override(o.exit_code_map, [&](const std::map<int32_t, int32_t>& v) {
    s->mutable_exit_code_map()->clear();
    for (const auto& [from, to] : v) (*s->mutable_exit_code_map())[from] = to;
  });
  Override(o.forwarded_signals, [&](const std::vector<int32_t>& v) {
    s->mutable_forwarded_signals()->Assign(v.begin(), v.end());
  });
  if (o.stop_signals) DropStopSignals(*o.stop_signals, s);
}

absl::Status FillLogging(const Options& o, const v1::JobSpec* before, uint32_t own_processes,
                         v1::JobSpec* spec) {
  v1::Logging* logging = spec->mutable_logging();
  if (before != nullptr) *logging = before->logging();
  Override(o.log_bytes_max, [&](uint64_t v) { logging->set_file_bytes_max(v); });
  Override(o.log_files, [&](uint32_t v) { logging->set_rotated_files_kept(v); });
  const TorchrunOptions& t = o.torchrun;
  if (!t.redirects && !t.tee && !t.local_ranks_shown) return absl::OkStatus();
  logging->clear_quiet_local_ranks();
  // Where each node has its own number, those of this one are meant.
  uint32_t count = spec->processes_per_node();
  if (count == 0) count = own_processes;
  for (uint32_t local_rank = 0; local_rank < count; ++local_rank) {
    const bool wanted =
        !t.local_ranks_shown ||
        std::binary_search(t.local_ranks_shown->begin(), t.local_ranks_shown->end(), local_rank);
    if (!wanted || ShownStreams(t, local_rank) == 0) logging->add_quiet_local_ranks(local_rank);
  }
  if (t.local_ranks_shown && t.local_ranks_shown->back() >= count) {
    return absl::InvalidArgumentError(absl::StrCat("--local-ranks-filter ",
                                                   t.local_ranks_shown->back(),
                                                   ": there are local ranks 0 to ", count - 1));
  }
  return absl::OkStatus();
}

absl::Status FillLaunching(const Options& o, const Surroundings& here, const v1::JobSpec* before,
                           RunPlan* plan) {
  v1::JobSpec& spec = plan->spec;
  v1::Launching* launching = spec.mutable_launching();
  const bool same_program = before != nullptr && o.program.empty();
  if (before != nullptr) *launching = before->launching();
  if (!same_program) launching->set_substitute_local_rank(o.torchrun_way);
  const TorchrunOptions& t = o.torchrun;
  Override(t.role, [&](const std::string& v) { launching->set_role(v); });
  Override(o.cpu_binding, [&](const std::string& v) { launching->set_cpu_binding(v); });
  // Over several nodes torchrun's places are where the nodes meet (meeting.h), and MASTER_ADDR is
  // the address of rank 0's node.
  const bool several = SeveralNodes(o);
  if (!several || !t.master_address) {
    Override(t.master_port, [&](uint32_t v) { launching->set_master_port(v); });
  }
  if (!several) {
    Override(t.master_address, [&](const std::string& v) { launching->set_master_address(v); });
  }
  if (t.rdzv_endpoint && !t.standalone && !several) {
    const HostAndPort endpoint = SplitEndpoint(*t.rdzv_endpoint);
    // torchrun's c10d tells workers the node's own address, where one is given.
    if (!t.local_address || t.rdzv_backend != "c10d") launching->set_master_address(endpoint.host);
    launching->set_master_port(endpoint.port);
  }
  if (t.standalone && (t.rdzv_endpoint || t.rdzv_id)) {
    plan->notes.push_back("--standalone: --rdzv-id and --rdzv-endpoint are left aside");
  }
  // For programs that use torch's elastic parts themselves, which read it.
  auto& variables = *launching->mutable_torchrun_environment();
  if (o.stop_signals || !variables.contains(kSignalsVariable)) {
    variables[kSignalsVariable] = o.stop_signals ? SignalNames(*o.stop_signals) : kTorchrunsSignals;
  }
  if (t.virtual_local_rank) launching->set_virtual_local_rank(true);
  NoteUnusedVariables(here, plan);
  const auto visible = here.environment.find("CUDA_VISIBLE_DEVICES");
  if (launching->virtual_local_rank() && spec.gpus().empty() && visible != here.environment.end()) {
    const std::vector<std::string> devices = absl::StrSplit(visible->second, ',');
    if (spec.processes_per_node() > devices.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--virtual-local-rank: each worker needs a GPU of its own, but CUDA_VISIBLE_DEVICES=",
          visible->second, " names ", devices.size(), " for ", spec.processes_per_node(),
          " workers"));
    }
  }
  return absl::OkStatus();
}

}  // namespace ddprun::cli
