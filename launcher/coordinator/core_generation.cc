// From one generation to the next: plan, start, end, and what follows.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/accounting.h"
#include "launcher/coordinator/ranks.h"
#include "launcher/coordinator/root_cause.h"
#include "launcher/coordinator/strikes.h"
#include "launcher/coordinator/turn.h"
#include "launcher/coordinator/unreachable.h"

namespace ddprun::coordinator {
namespace {

// A worker that lost its peer is often gone before that peer: S6 asks for 0.3 s around each other.
constexpr int64_t kAwaitCauseNs = kSecondNs / 2;
constexpr int64_t kTimeMaxNs = int64_t{1} << 62;  // a worker's end; sums must not overflow
constexpr int64_t kLastCallNs = 3 * kSecondNs;    // for MIN:MAX nodes, as long as a lease

// Beyond these, nodes are not told all nodes' places: what all of them are told grows with the
// square of their number, and the list of all ranks has to fit in one variable.
constexpr size_t kPlacesTold = 64;
constexpr size_t kRanksTold = 4096;

bool AllExited(const Generation& generation) {
  return generation.exited == generation.workers.size();
}

bool AllExitedWell(const Generation& generation) {
  return generation.exited_well == generation.workers.size();
}

// A node whose stream is broken is back or lost within its lease; the next generation is not begun
// without it only to be resized at once.
bool SomeoneReturns(const State& state) {
  const std::set<std::string> out = LeftOut(state);
  return std::any_of(state.nodes.begin(), state.nodes.end(), [&](const auto& entry) {
    const Node& node = entry.second;
    return !node.attached && !node.leaving && !node.released && !out.contains(entry.first);
  });
}

void AddPlaces(const State& state, v1::StartWorkers& start, size_t group_rank) {
  const Generation& g = state.generation;
  auto address_of = [&](size_t index) { return state.nodes.at(g.placements[index].node).address; };
  const size_t count = g.placements.size();
  start.set_master_address(address_of(0));
  if (count > 1) {
    const uint32_t wished = state.spec.launching().master_port();
    start.set_master_port(wished != 0 ? wished : state.nodes.at(g.placements[0].node).master_port);
    start.set_next_address(address_of((group_rank + 1) % count));
  }
  if (count > kPlacesTold || g.workers.size() > kRanksTold) return;
  for (size_t i = 0; i < count; ++i) {
    v1::NodePlace* place = start.add_nodes();
    place->set_node(g.placements[i].node);
    place->set_address(address_of(i));
    place->set_first_rank(g.placements[i].first_rank);
    place->set_count(g.placements[i].count);
  }
}

v1::StartWorkers StartOrder(const State& state, const Placement& placement, size_t group_rank) {
  const Generation& g = state.generation;
  v1::StartWorkers start;
  start.set_job_id(state.spec.job_id());
  start.set_generation(g.number);
  start.set_world_size(static_cast<uint32_t>(g.workers.size()));
  start.set_first_rank(placement.first_rank);
  start.set_local_world_size(placement.count);
  start.set_group_rank(static_cast<uint32_t>(group_rank));
  start.set_group_world_size(static_cast<uint32_t>(g.placements.size()));
  start.set_restart_count(state.history.restarts_charged);
  start.set_resume_step(g.resume_step);
  AddPlaces(state, start, group_rank);
  return start;
}

}  // namespace

void WaitForNodes(Turn& turn) {
  State& s = turn.state;
  ReleaseLeaving(turn);
  s.phase = Phase::kWaiting;
  const auto join_ns = static_cast<int64_t>(s.spec.join_timeout_seconds() * kSecondNs);
  s.deadline_ns = turn.now_ns + join_ns;
  // Where nodes that are left out are needed, they are waited for first.
  if (UsableNodes(s) < s.spec.nodes_min()) {
    for (const auto& [name, entry] : s.strikes) {
      if (entry.out) s.deadline_ns = std::max(s.deadline_ns, entry.out_until_ns + join_ns);
    }
  }
  s.last_call_ns = 0;
  s.no_more_nodes = false;
  MaybePlanGeneration(turn);
}

void MaybePlanGeneration(Turn& turn, bool late) {
  State& s = turn.state;
  if (s.phase != Phase::kWaiting || turn.now_ns < s.not_before_ns || s.pause.wanted) return;
  const bool stale = std::any_of(s.nodes.begin(), s.nodes.end(), [](const auto& entry) {
    return entry.second.stale_generation != 0;
  });
  if (stale) {
    s.last_call_ns = 0;
    return;
  }
  const size_t here = UsableNodes(s);
  if (here < s.spec.nodes_min()) {
    s.last_call_ns = 0;  // begins anew when enough are here again
    return;
  }
  if (here < s.spec.nodes_max() && !late) {
    // Others may be on their way only before the first generation; later each comes by a resize.
    if (!s.ever_complete) {
      if (s.last_call_ns == 0) s.last_call_ns = turn.now_ns + kLastCallNs;
      if (turn.now_ns < s.last_call_ns) return;
    } else if (SomeoneReturns(s) ||
               (s.spec.membership().wait_for_replacement() && here < s.last_placements.size())) {
      return;  // until the deadline
    }
  }
  s.ever_complete = true;
  s.phase = Phase::kChoosing;
  s.deadline_ns = 0;
  s.last_call_ns = s.grow_ns = s.grow_since_ns = 0;
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
  s.pause.start_held = s.pause.wanted;
  if (s.pause.wanted) return;  // looked up again when the pause is over
  for (const auto& bad : chosen.rejected) {
    turn.Record("checkpoint_rejected", {{"step", bad.step},
                                        {"path", bad.path},
                                        {"resume_step", chosen.step},
                                        {"reason", bad.reason}});
  }
  // Also where no generation comes of it now: what was rejected is not resumed from any more.
  s.committed_step = chosen.step;
  s.history.any_commit = s.history.any_commit || chosen.step != 0;
  Assignment assignment = AssignRanks(s.spec, s.nodes, s.last_placements, LeftOut(s));
  if (assignment.placements.empty()) return WaitForNodes(turn);
  s.phase = Phase::kRunning;
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
  for (size_t i = 0; i < g.placements.size(); ++i) {
    Node& node = s.nodes.at(g.placements[i].node);
    node.stopped = false;
    v1::CoordinatorMessage message;
    *message.mutable_start_workers() = StartOrder(s, g.placements[i], i);
    message.mutable_start_workers()->set_resume_from(chosen.path);
    turn.Send(node, std::move(message));
  }
  ConsiderGrowth(turn);  // somebody may have come while the checkpoint was looked up
}

void EndGeneration(Turn& turn, bool failed, const std::string& reason, v1::StopWorkers::Mode mode) {
  State& s = turn.state;
  Generation& g = s.generation;
  if (s.phase != Phase::kRunning && s.phase != Phase::kStopping) return;
  if (s.phase == Phase::kRunning) {
    s.phase = Phase::kStopping;
    s.stop_deadline_ns = s.grow_ns = s.grow_since_ns = 0;
    g.failed = failed;
    g.end_reason = reason;
    g.ended_ns = turn.now_ns;
    g.agreement.reset();
    g.examination.reset();
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
  worker.exited->set_time_ns(std::clamp<int64_t>(exited.time_ns(), 0, kTimeMaxNs));
  if (!worker.ready) ++g.ready_or_exited;
  ++g.exited;
  if (exited.exit_code() == 0 && exited.signal() == 0) ++g.exited_well;
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
    if (IsCommunication(worker) && !AllExited(g)) {
      if (g.await_cause_until_ns == 0) g.await_cause_until_ns = turn.now_ns + kAwaitCauseNs;
      return;
    }
    if (exited.stopped_by_us()) {  // by its node's own decision: no order of ours is out
      g.ended_for = Cause::kNodeLost;
      g.blamed_node = worker.node;
      return EndGeneration(
          turn, true,
          absl::StrCat("node ", worker.node, " ended its workers: it leaves, or its lease ran out"),
          v1::StopWorkers::ABORT);
    }
    EndGeneration(turn, true, absl::StrCat("rank ", exited.rank(), " ", DescribeExit(exited)),
                  v1::StopWorkers::ABORT);
  } else if (AllExited(g) && !AllExitedWell(g)) {
    EndForLostPeers(turn);
  } else if (AllExitedWell(g)) {
    // Each keeper ends by itself when its workers are gone; nobody needs an order.
    s.phase = Phase::kStopping;
    s.grow_ns = s.grow_since_ns = s.stop_deadline_ns = 0;
    g.end_reason = kFinishedReason;
    g.ended_ns = turn.now_ns;
  } else {
    // A rank that is through needs no agreed step; those that wait for one must not wait for it.
    ConcludeAgreement(turn);
  }
}

void EndForLostPeers(Turn& turn) {
  const Generation& g = turn.state.generation;
  if (!g.unreached.empty()) {
    return EndGeneration(turn, true, g.unreached.begin()->second.begin()->second,
                         v1::StopWorkers::ABORT);
  }
  EndGeneration(turn, true, "workers lost a peer, and none of them shows why",
                v1::StopWorkers::ABORT);
}

void HandleGenerationStopped(Turn& turn, Node& node, const v1::GenerationStopped& stopped) {
  node.stopped = true;
  node.master_port = stopped.master_port();
  if (stopped.unkillable_pids_size() > 0) {
    nlohmann::ordered_json pids(
        std::vector<int32_t>(stopped.unkillable_pids().begin(), stopped.unkillable_pids().end()));
    turn.Record("worker_unkillable", {{"node", node.name}, {"pids", pids}});
    turn.state.generation.unkillable[node.name].assign(stopped.unkillable_pids().begin(),
                                                       stopped.unkillable_pids().end());
  }
  // One that could not reach another waits for what the others say of that one.
  const bool waits = Accuses(turn.state.generation, node.name) && !stopped.keeper_died();
  if (turn.state.phase == Phase::kRunning && !waits) {
    Generation& g = turn.state.generation;
    const bool complete = std::all_of(g.workers.begin(), g.workers.end(), [&](const Worker& w) {
      return w.node != node.name || w.exited;
    });
    if (stopped.keeper_died() || !complete) {
      g.ended_for = Cause::kKeeperDied;
      g.blamed_node = node.name;
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
  AccountGeneration(s, HadStarted(turn));
  if (g.failed) return AfterFailure(turn);
  const bool resized = WasResized(s);
  const std::string& reason = resized ? g.resize->reason : g.end_reason;
  turn.Record("generation_ended",
              {{"reason", s.stop.requested ? s.stop.reason : reason}, {"rank", -1}});
  if (s.stop.requested) return FinishStopped(turn);
  if (resized) return AfterResize(turn);
  Finish(turn, {"succeeded", 0, "", ""});
}

void FinishStopped(Turn& turn) {
  const StopRequest& stop = turn.state.stop;
  int32_t code = stop.exit_code;
  if (code == 0 && stop.signal != 0) code = 128 + stop.signal;
  Finish(turn, {"stopped", code, "", stop.reason});
}

void Finish(Turn& turn, Outcome outcome) {
  State& s = turn.state;
  s.phase = Phase::kFinished;
  s.exit_code = outcome.exit_code;
  s.deadline_ns = 0;
  nlohmann::ordered_json fields = {{"status", outcome.status}, {"exit_code", outcome.exit_code}};
  fields.update(AccountEnd(s));
  turn.Record("job_finished", std::move(fields));
  for (auto& [name, node] : s.nodes) {
    v1::CoordinatorMessage message;
    message.mutable_job_ended()->set_status(outcome.status);
    message.mutable_job_ended()->set_exit_code(outcome.exit_code);
    turn.Send(node, std::move(message));
  }
  turn.out.push_back(FinishJob{std::move(outcome)});
}

}  // namespace ddprun::coordinator
