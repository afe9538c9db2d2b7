// Checkpoints and stops: agreed steps, shards, commits, and what a person or a signal asks.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/root_cause.h"
#include "launcher/coordinator/turn.h"

namespace ddprun::coordinator {
namespace {

v1::CoordinatorMessage SettledMessage(const Turn& turn, uint64_t step, bool committed,
                                      const std::string& reason) {
  v1::CoordinatorMessage message;
  auto* settled = message.mutable_checkpoint_settled();
  settled->set_generation(turn.state.generation.number);
  settled->set_step(step);
  settled->set_committed(committed);
  settled->set_reason(reason);
  return message;
}

// An agreed checkpoint is over when that of its step is; a stop's stays, since the workers end now.
void ForgetAgreement(Turn& turn) {
  Generation& g = turn.state.generation;
  if (!g.agreement || !g.agreement->told || g.agreement->stop) return;
  if (g.settled_step < g.agreement->step) return;
  g.agreement.reset();
  MaybeRequestEdge(turn);
}

void Settle(Turn& turn, uint64_t step, bool committed, const std::string& reason) {
  Generation& g = turn.state.generation;
  g.settled_step = std::max(g.settled_step, step);
  turn.SendToMembers(SettledMessage(turn, step, committed, reason));
  ForgetAgreement(turn);
}

// This step's checkpoint was committed or dropped, now or in an earlier generation.
bool IsOver(const State& state, uint64_t step) {
  return step <= state.generation.settled_step ||
         (state.history.any_commit && step <= state.committed_step);
}

// A rank writes a step that is over (it lags behind, or resumed from the last one); its own node
// hears what became of it. A worker takes "committed" only after its own report.
void AnswerLate(Turn& turn, const v1::CheckpointFact& fact) {
  State& s = turn.state;
  auto node = s.nodes.find(s.generation.workers[fact.rank()].node);
  if (node == s.nodes.end()) return;
  const bool real = s.history.any_commit && fact.step() == s.committed_step;
  if (real && fact.what() == v1::CheckpointFact::STARTED) return;
  const bool committed = real && fact.what() == v1::CheckpointFact::WRITTEN;
  turn.Send(node->second, SettledMessage(turn, fact.step(), committed, "this step is over"));
}

// The workers do not take part in agreed steps (a plain program, or still starting): signals do it.
void StopBySignal(Turn& turn, const std::string& reason) {
  EndGeneration(turn, false, reason, v1::StopWorkers::STOP);
}

void PassSignalOn(Turn& turn, int32_t signal) {
  v1::CoordinatorMessage message;
  message.mutable_signal_workers()->set_generation(turn.state.generation.number);
  message.mutable_signal_workers()->set_signal(signal);
  turn.SendToMembers(message);
}

void DropRefused(Turn& turn, const v1::CheckpointFact& fact) {
  const std::string dropped = absl::StrCat("rank ", fact.rank(), ": ", fact.reason());
  turn.state.generation.refused =
      RefusedCheckpoint{fact.step(), fact.rank(), fact.reason(), dropped};
  DropCheckpoint(turn, dropped);
}

void AddShards(Turn& turn, PendingCheckpoint& checkpoint, const v1::CheckpointFact& fact) {
  Generation& g = turn.state.generation;
  checkpoint.shards.try_emplace(fact.rank(), fact.files().begin(), fact.files().end());
  if (checkpoint.shards.size() < g.workers.size()) return;
  checkpoint.committing = true;
  CommitCheckpoint commit{g.number, checkpoint.step, static_cast<uint32_t>(g.workers.size()), {}};
  for (const auto& [rank, files] : checkpoint.shards) {
    commit.files.insert(commit.files.end(), files.begin(), files.end());
  }
  turn.out.push_back(std::move(commit));
}

}  // namespace

bool AllReadyAndAlive(const Generation& g) {
  return !g.workers.empty() && g.ready == g.workers.size() && g.exited == 0;
}

void AskToStop(Turn& turn, const ControlAsked& asked) {
  State& s = turn.state;
  AskToContinue(turn);  // a stopped process cannot leave in its own way
  const bool again = s.stop.requested;
  s.stop.requested = true;
  s.stop.kill = s.stop.kill || asked.action == v1::ControlRequest::KILL;
  // The time limit's reason stays, also when somebody hurries it on.
  if (s.stop.exit_code == 0) {
    if (asked.signal != 0) s.stop.signal = asked.signal;
    s.stop.reason = asked.signal != 0 ? absl::StrCat("stopped by ", SignalName(asked.signal))
                                      : "stopped on request";
  }
  switch (s.phase) {
    case Phase::kWaiting:
    case Phase::kChoosing:
    case Phase::kBackingOff:
      return FinishStopped(turn);
    case Phase::kRunning:
      if (s.stop.kill) return EndGeneration(turn, false, s.stop.reason, v1::StopWorkers::KILL);
      if (again) return;
      if (s.generation.resize && s.generation.agreement && s.generation.agreement->stop) {
        return;  // they are stopping with a checkpoint already
      }
      if (!AllReadyAndAlive(s.generation)) return StopBySignal(turn, s.stop.reason);
      s.stop_deadline_ns = turn.now_ns + GraceNs(s);
      return MaybeRequestEdge(turn);
    case Phase::kStopping:
      if (s.stop.kill) EndGeneration(turn, false, s.stop.reason, v1::StopWorkers::KILL);
      return;
    case Phase::kFinished:
      return;
  }
}

void HandleControl(Turn& turn, const ControlAsked& asked) {
  State& s = turn.state;
  switch (asked.action) {
    case v1::ControlRequest::STOP:
    case v1::ControlRequest::KILL:
      return AskToStop(turn, asked);
    case v1::ControlRequest::CHECKPOINT:
      if (s.phase != Phase::kRunning) return;
      // Where one is ready, the others may get ready too, and are asked then.
      if (s.generation.ready > 0) {
        s.checkpoint_wanted = true;
        MaybeRequestEdge(turn);
        if (AllReadyAndAlive(s.generation)) return;
      }
      // A plain program gets the signal itself; our trainer has not begun, so there is nothing to
      // save.
      if (s.spec.train_config_json().empty() && asked.signal != 0) PassSignalOn(turn, asked.signal);
      return;
    case v1::ControlRequest::SIGNAL:
      if (s.phase == Phase::kRunning) PassSignalOn(turn, asked.signal);
      return;
    case v1::ControlRequest::PAUSE:
      return AskToPause(turn);
    case v1::ControlRequest::CONTINUE:
      return AskToContinue(turn);
    case v1::ControlRequest::NO_MORE_NODES:
      if (s.phase != Phase::kWaiting || s.deadline_ns == 0) return;
      s.no_more_nodes = true;
      s.deadline_ns = turn.now_ns;
      return;
    default:
      return;
  }
}

void MaybeRequestEdge(Turn& turn) {
  State& s = turn.state;
  Generation& g = s.generation;
  const bool stop = s.stop.requested || g.resize.has_value();
  if (s.phase != Phase::kRunning || (!stop && !s.checkpoint_wanted)) return;
  // One at a time, however often a person asks; only a stop does not wait for a checkpoint that is
  // on its way.
  if (g.agreement && !(stop && g.agreement->told && !g.agreement->stop)) return;
  if (!AllReadyAndAlive(g)) return;
  s.checkpoint_wanted = false;
  g.agreement = EdgeAgreement{s.next_edge_id++, stop, {}};
  v1::CoordinatorMessage message;
  message.mutable_edge_request()->set_generation(g.number);
  message.mutable_edge_request()->set_id(g.agreement->id);
  message.mutable_edge_request()->set_stop(stop);
  turn.SendToMembers(message);
}

void HandleEdge(Turn& turn, const v1::EdgeReached& edge) {
  Generation& g = turn.state.generation;
  if (turn.state.phase != Phase::kRunning || !g.agreement || g.agreement->id != edge.id() ||
      edge.rank() >= g.workers.size()) {
    return;
  }
  g.agreement->edges[edge.rank()] = edge.step();
  ConcludeAgreement(turn);
}

void ConcludeAgreement(Turn& turn) {
  Generation& g = turn.state.generation;
  if (!g.agreement || g.agreement->told) return;
  uint64_t step = 0;
  for (uint32_t rank = 0; rank < g.workers.size(); ++rank) {
    auto edge = g.agreement->edges.find(rank);
    if (edge == g.agreement->edges.end() && !g.workers[rank].exited) return;
    if (edge != g.agreement->edges.end()) step = std::max(step, edge->second);
  }
  v1::CoordinatorMessage message;
  auto* at = message.mutable_checkpoint_at();
  at->set_generation(g.number);
  at->set_id(g.agreement->id);
  at->set_step(step);
  at->set_stop(g.agreement->stop);
  turn.SendToMembers(message);
  g.agreement->told = true;
  g.agreement->step = step;
  ForgetAgreement(turn);  // a periodic one of that step may be over already
  // A stop that came while a plain checkpoint was being agreed has its own turn now.
  MaybeRequestEdge(turn);
}

void HandleCheckpointFact(Turn& turn, const v1::CheckpointFact& fact) {
  State& s = turn.state;
  Generation& g = s.generation;
  if (fact.rank() >= g.workers.size()) return;
  if (fact.what() == v1::CheckpointFact::SKIPPED) {
    return turn.Record("checkpoint_skipped", {{"step", fact.step()}, {"reason", fact.reason()}});
  }
  if (s.phase != Phase::kRunning) return;
  if (IsOver(s, fact.step()) || (g.checkpoint && fact.step() < g.checkpoint->step)) {
    return AnswerLate(turn, fact);
  }
  if (g.checkpoint && g.checkpoint->committing) {
    // Ranks begin the next one only when they know the end of this one; only a refusal comes early.
    if (fact.what() == v1::CheckpointFact::FAILED) g.failed_ahead = fact;
    return;
  }
  if (g.checkpoint && fact.step() > g.checkpoint->step) {
    DropCheckpoint(turn, absl::StrCat("rank ", fact.rank(), " writes step ", fact.step(),
                                      " before each rank has written this one"));
  }
  if (!g.checkpoint) {
    g.checkpoint = PendingCheckpoint{fact.step(), false, {}};
    turn.Record("checkpoint_started", {{"step", fact.step()}});
  }
  PendingCheckpoint& checkpoint = *g.checkpoint;
  if (g.failed_ahead && g.failed_ahead->step() == checkpoint.step) {
    return DropRefused(turn, *g.failed_ahead);
  }
  switch (fact.what()) {
    case v1::CheckpointFact::WRITTEN:
      return AddShards(turn, checkpoint, fact);
    case v1::CheckpointFact::FAILED:
      return DropRefused(turn, fact);
    default:
      return;
  }
}

void DropCheckpoint(Turn& turn, const std::string& reason) {
  Generation& g = turn.state.generation;
  const uint64_t step = g.checkpoint->step;
  g.checkpoint.reset();
  turn.Record("checkpoint_failed", {{"step", step}, {"reason", reason}});
  turn.out.push_back(DropStaging{g.number, step});
  Settle(turn, step, false, reason);
}

void HandleCheckpointStored(Turn& turn, const CheckpointStored& stored) {
  State& s = turn.state;
  Generation& g = s.generation;
  if (stored.generation != g.number || !g.checkpoint || g.checkpoint->step != stored.step) return;
  g.checkpoint.reset();
  if (stored.ok) {
    if (stored.step > s.committed_step || !s.history.any_commit)
      s.history.restarts_without_commit = 0;
    s.history.any_commit = true;
    s.committed_step = std::max(s.committed_step, stored.step);
    turn.Record("checkpoint_committed", {{"step", stored.step}, {"path", stored.path}});
  } else {
    turn.Record("checkpoint_failed", {{"step", stored.step}, {"reason", stored.reason}});
  }
  Settle(turn, stored.step, stored.ok, stored.reason);
  AfterStop(turn);
}

}  // namespace ddprun::coordinator
