// From one generation to the next: plan, start, end, and what follows.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/ranks.h"
#include "launcher/coordinator/restart_policy.h"
#include "launcher/coordinator/root_cause.h"
#include "launcher/coordinator/turn.h"

namespace ddprun::coordinator {
namespace {

constexpr int64_t kLastCallNs = 3 * kSecondNs;  // for MIN:MAX nodes, as long as a lease
constexpr size_t kFailuresKept = 100;           // DESIGN 4.2

bool AllReady(const Generation& generation) {
  return std::all_of(generation.workers.begin(), generation.workers.end(),
                     [](const Worker& worker) { return worker.ready; });
}

bool AllExitedWell(const Generation& generation) {
  return std::all_of(generation.workers.begin(), generation.workers.end(), [](const Worker& w) {
    return w.exited && w.exited->exit_code() == 0 && w.exited->signal() == 0;
  });
}

// Whether the generation had got going, so that its failure is not one of the start.
bool HadStarted(const Turn& turn) {
  const Generation& g = turn.state.generation;
  const double uptime_seconds = static_cast<double>(turn.now_ns - g.started_ns) / kSecondNs;
  return g.first_step != 0 || AllReady(g) ||
         uptime_seconds >= turn.state.spec.restart().min_uptime_seconds();
}

FailureRecord MakeFailure(const Turn& turn) {
  const State& s = turn.state;
  const Generation& g = s.generation;
  std::map<std::string, int64_t> offsets;
  for (const auto& [name, node] : s.nodes) offsets[name] = node.clock_offset_ns;
  const RootCause cause = FindRootCause(g, offsets);
  FailureRecord failure;
  failure.generation = g.number;
  failure.rank = cause.rank;
  failure.reason = cause.reason;
  failure.before_start = !HadStarted(turn);
  if (cause.rank < 0 || !cause.certain) {
    failure.node_lost = g.node_lost;
    if (g.node_lost) failure.node = g.lost_node;
    if (cause.rank < 0 || g.node_lost) failure.reason = g.end_reason;
    if (g.node_lost) return failure;
  }
  if (cause.rank < 0) return failure;
  const Worker& worker = g.workers[cause.rank];
  failure.node = worker.node;
  if (worker.failed) {
    failure.t = static_cast<double>(worker.failed->time_ns()) / kSecondNs;
    failure.config = worker.failed->kind() == v1::WorkerFailed::CONFIG;
    failure.start_failed = worker.failed->kind() == v1::WorkerFailed::START;
  }
  if (worker.exited) {
    failure.pid = worker.exited->pid();
    failure.exit_code = worker.exited->exit_code();
    failure.signal = worker.exited->signal();
    failure.t = static_cast<double>(worker.exited->time_ns()) / kSecondNs;
    failure.log_tail.assign(worker.exited->log_tail().begin(), worker.exited->log_tail().end());
  }
  return failure;
}

// Remembers how far this generation came and when, so that the next one can say what its end has
// cost.
void RememberProgress(State& state) {
  Generation& g = state.generation;
  for (const Worker& worker : g.workers) {
    if (worker.exited && g.first_step != 0)
      g.step = std::max<uint64_t>(g.step, worker.exited->step());
  }
  if (g.first_step == 0) return;
  state.trained_to_step = g.step;
  state.trained_until_ns = g.last_step_ns;
  if (g.step > g.first_step && g.last_step_ns > g.first_step_ns) {
    state.seconds_per_step = static_cast<double>(g.last_step_ns - g.first_step_ns) / kSecondNs /
                             static_cast<double>(g.step - g.first_step);
  }
}

void UpdateHistory(State& state, const FailureRecord& failure, bool ran_long) {
  History& h = state.history;
  const bool new_ground = state.generation.step > state.best_step;
  h.failures_in_a_row = new_ground || ran_long ? 1 : h.failures_in_a_row + 1;
  h.start_failures_in_a_row = failure.before_start ? h.start_failures_in_a_row + 1 : 0;
  state.best_step = std::max(state.best_step, state.generation.step);
}

void AfterFailure(Turn& turn) {
  State& s = turn.state;
  FailureRecord failure = MakeFailure(turn);
  const double uptime_seconds =
      static_cast<double>(turn.now_ns - s.generation.started_ns) / kSecondNs;
  UpdateHistory(s, failure, uptime_seconds >= s.spec.restart().min_uptime_seconds());
  if (s.failures.size() == kFailuresKept) s.failures.erase(s.failures.begin());
  s.failures.push_back(failure);
  turn.Record("generation_ended", {{"reason", failure.reason}, {"rank", failure.rank}});
  if (s.stop.requested) {
    return Finish(turn,
                  {"stopped", s.stop.signal != 0 ? 128 + s.stop.signal : 0, "", s.stop.reason});
  }
  const Decision decision = DecideAfterFailure(s.spec.restart(), s.history, failure);
  if (!decision.restart) {
    return Finish(turn, {"failed", decision.exit_code, decision.failure_kind, decision.text});
  }
  ++s.history.restarts_charged;
  ++s.history.restarts_without_commit;
  turn.Record("restart_scheduled",
              {{"delay_seconds", static_cast<double>(decision.delay_ns) / kSecondNs},
               {"restarts_used", s.history.restarts_charged},
               {"restarts_limit", s.spec.restart().max_restarts()},
               {"resume_step", s.committed_step}});
  if (decision.delay_ns == 0) return WaitForNodes(turn);
  s.phase = Phase::kBackingOff;
  s.deadline_ns = turn.now_ns + decision.delay_ns;
}

v1::StartWorkers StartOrder(const State& state, const Placement& placement, size_t group_rank) {
  const Generation& g = state.generation;
  v1::StartWorkers start;
  start.set_job_id(state.spec.job_id());
  start.set_generation(g.number);
  *start.mutable_spec() = state.spec;
  start.set_world_size(static_cast<uint32_t>(g.workers.size()));
  start.set_first_rank(placement.first_rank);
  start.set_local_world_size(placement.count);
  start.set_group_rank(static_cast<uint32_t>(group_rank));
  start.set_group_world_size(static_cast<uint32_t>(g.placements.size()));
  start.set_restart_count(state.history.restarts_charged);
  start.set_resume_step(g.resume_step);
  return start;
}

}  // namespace

void WaitForNodes(Turn& turn) {
  State& s = turn.state;
  s.phase = Phase::kWaiting;
  s.deadline_ns = turn.now_ns + static_cast<int64_t>(s.spec.join_timeout_seconds() * kSecondNs);
  s.last_call_ns = 0;
  MaybePlanGeneration(turn);
}

void MaybePlanGeneration(Turn& turn) {
  State& s = turn.state;
  if (s.phase != Phase::kWaiting || turn.now_ns < s.not_before_ns) return;
  const bool stale = std::any_of(s.nodes.begin(), s.nodes.end(), [](const auto& entry) {
    return entry.second.stale_generation != 0;
  });
  if (stale) {
    s.last_call_ns = 0;
    return;
  }
  const size_t here = static_cast<size_t>(std::count_if(
      s.nodes.begin(), s.nodes.end(), [](const auto& entry) { return entry.second.attached; }));
  if (here < s.spec.nodes_min()) {
    s.last_call_ns = 0;  // begins anew when enough are here again
    return;
  }
  if (here < s.spec.nodes_max()) {
    if (s.last_call_ns == 0) s.last_call_ns = turn.now_ns + kLastCallNs;
    if (turn.now_ns < s.last_call_ns) return;
  }
  s.ever_complete = true;
  s.phase = Phase::kChoosing;
  s.deadline_ns = 0;
  s.last_call_ns = 0;
  const uint64_t number = s.generation.number + 1;
  s.generation = Generation{};
  s.generation.number = number;
  turn.out.push_back(PersistGeneration{number});
  turn.out.push_back(ChooseResume{number});
}

void StartGeneration(Turn& turn, const ResumeChosen& chosen) {
  State& s = turn.state;
  Generation& g = s.generation;
  if (s.phase != Phase::kChoosing || chosen.generation != g.number) return;
  for (const auto& bad : chosen.rejected) {
    turn.Record("checkpoint_rejected",
                {{"step", bad.step}, {"path", bad.path}, {"reason", bad.reason}});
  }
  Assignment assignment = AssignRanks(s.spec, s.nodes, s.last_placements);
  if (assignment.placements.empty()) return WaitForNodes(turn);
  s.phase = Phase::kRunning;
  s.committed_step = chosen.step;
  s.history.any_commit = s.history.any_commit || chosen.step != 0;
  g.placements = assignment.placements;
  s.last_placements = assignment.placements;
  g.workers.resize(assignment.world_size);
  g.resume_step = chosen.step;
  g.started_ns = turn.now_ns;
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  for (const Placement& placement : g.placements) {
    names.push_back(placement.node);
    for (uint32_t i = 0; i < placement.count; ++i) {
      g.workers[placement.first_rank + i].node = placement.node;
      g.workers[placement.first_rank + i].local_rank = i;
    }
  }
  turn.Record(
      "generation_started",
      {{"world_size", assignment.world_size}, {"nodes", names}, {"resume_step", chosen.step}});
  const std::string master = s.nodes.at(g.placements[0].node).address;
  for (size_t i = 0; i < g.placements.size(); ++i) {
    Node& node = s.nodes.at(g.placements[i].node);
    node.stopped = false;
    v1::CoordinatorMessage message;
    *message.mutable_start_workers() = StartOrder(s, g.placements[i], i);
    message.mutable_start_workers()->set_master_address(master);
    message.mutable_start_workers()->set_resume_from(chosen.path);
    turn.Send(node, std::move(message));
  }
}

void EndGeneration(Turn& turn, bool failed, const std::string& reason, v1::StopWorkers::Mode mode) {
  State& s = turn.state;
  Generation& g = s.generation;
  if (s.phase != Phase::kRunning && s.phase != Phase::kStopping) return;
  if (s.phase == Phase::kRunning) {
    s.phase = Phase::kStopping;
    s.stop_deadline_ns = 0;
    g.failed = failed;
    g.end_reason = reason;
    g.agreement.reset();
    g.values.clear();
    g.awaits.clear();
    if (g.checkpoint && !g.checkpoint->committing) DropCheckpoint(turn, "the generation ended");
  } else if (mode <= g.stop_order.mode()) {
    return;  // an order as hard as this one was given already
  }
  g.stop_order.set_generation(g.number);
  g.stop_order.set_mode(mode);
  g.stop_order.set_grace_seconds(s.spec.grace_seconds());
  g.stop_order.set_reason(reason);
  turn.SendToMembers(StopMessage(g.stop_order));
}

void HandleWorkerExited(Turn& turn, const v1::WorkerExited& exited) {
  State& s = turn.state;
  Generation& g = s.generation;
  if (exited.rank() >= g.workers.size() || g.workers[exited.rank()].exited) return;
  Worker& worker = g.workers[exited.rank()];
  worker.exited = exited;
  worker.cause = ExitCause(worker, exited);
  nlohmann::ordered_json fields = {{"rank", exited.rank()}, {"pid", exited.pid()}};
  if (exited.signal() != 0) {
    fields["signal"] = SignalName(exited.signal());
  } else {
    fields["exit_code"] = exited.exit_code();
  }
  fields["cause"] = worker.cause;
  turn.Record("worker_exited", std::move(fields));
  if (s.phase != Phase::kRunning) return;
  if (exited.signal() != 0 || exited.exit_code() != 0) {
    EndGeneration(turn, true, absl::StrCat("rank ", exited.rank(), " ", DescribeExit(exited)),
                  v1::StopWorkers::ABORT);
  } else if (AllExitedWell(g)) {
    // Each keeper ends by itself when its workers are gone; nobody needs an order.
    s.phase = Phase::kStopping;
    g.end_reason = "finished";
  } else {
    // A rank that is through needs no agreed step; those that wait for one must not wait for it.
    ConcludeAgreement(turn);
  }
}

void HandleGenerationStopped(Turn& turn, Node& node, const v1::GenerationStopped& stopped) {
  node.stopped = true;
  if (stopped.unkillable_pids_size() > 0) {
    nlohmann::ordered_json pids(
        std::vector<int32_t>(stopped.unkillable_pids().begin(), stopped.unkillable_pids().end()));
    turn.Record("worker_unkillable", {{"node", node.name}, {"pids", pids}});
  }
  if (turn.state.phase == Phase::kRunning) {
    const Generation& g = turn.state.generation;
    const bool complete = std::all_of(g.workers.begin(), g.workers.end(), [&](const Worker& w) {
      return w.node != node.name || w.exited;
    });
    if (stopped.keeper_died() || !complete) {
      EndGeneration(turn, true, absl::StrCat("on node ", node.name, ": ", stopped.reason()),
                    v1::StopWorkers::ABORT);
    }
  }
  AfterStop(turn);
}

void AfterStop(Turn& turn) {
  State& s = turn.state;
  Generation& g = s.generation;
  if (s.phase != Phase::kStopping) return;
  if (g.checkpoint && g.checkpoint->committing) return;  // its end comes as CheckpointStored
  for (const Placement& placement : g.placements) {
    auto node = s.nodes.find(placement.node);
    if (node != s.nodes.end() && !node->second.stopped) return;
  }
  RememberProgress(s);
  if (g.failed) return AfterFailure(turn);
  turn.Record("generation_ended",
              {{"reason", s.stop.requested ? s.stop.reason : g.end_reason}, {"rank", -1}});
  if (s.stop.requested) {
    return Finish(turn,
                  {"stopped", s.stop.signal != 0 ? 128 + s.stop.signal : 0, "", s.stop.reason});
  }
  Finish(turn, {"succeeded", 0, "", ""});
}

void Finish(Turn& turn, Outcome outcome) {
  State& s = turn.state;
  s.phase = Phase::kFinished;
  s.deadline_ns = 0;
  turn.Record("job_finished", {{"status", outcome.status}, {"exit_code", outcome.exit_code}});
  for (auto& [name, node] : s.nodes) {
    v1::CoordinatorMessage message;
    message.mutable_job_ended()->set_status(outcome.status);
    message.mutable_job_ended()->set_exit_code(outcome.exit_code);
    turn.Send(node, std::move(message));
  }
  turn.out.push_back(FinishJob{std::move(outcome)});
}

}  // namespace ddprun::coordinator
