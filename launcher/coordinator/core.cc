#include "launcher/coordinator/core.h"

#include <algorithm>

#include "launcher/coordinator/turn.h"

namespace ddprun::coordinator {
namespace {

void HandleSubmitted(Turn& turn, const JobSubmitted& event) {
  State& s = turn.state;
  s.spec = event.spec;
  s.leader_token = event.leader_token;
  s.version = event.version;
  s.versions = event.versions;
  if (!s.versions.empty()) s.versions_of = "the coordinator";
  s.started_ns = turn.now_ns;
  s.generation.number = event.past.generation;
  s.restarts_before = event.past.restarts;
  s.accounts.lost_seconds = event.past.time_lost_seconds;
  s.accounts.lost_by_cause = event.past.lost_by_cause;
  s.phase = Phase::kWaiting;
  // Nodes that do not come back may still run workers; their leases end by then.
  if (event.past.may_run && event.spec.lease_seconds() > 0) {
    s.not_before_ns = turn.now_ns + SilenceNs(s);
  }
  s.deadline_ns = std::max(turn.now_ns, s.not_before_ns) +
                  static_cast<int64_t>(event.spec.join_timeout_seconds() * kSecondNs);
  turn.Record("job_started", {{"job_id", event.spec.job_id()}, {"version", event.version}});
}

// The one gate against stale messages: everything below speaks of the current generation.
bool SpeaksOfCurrentGeneration(const State& state, const v1::AgentMessage& message) {
  using M = v1::AgentMessage;
  uint64_t generation = 0;
  switch (message.message_case()) {
    case M::kWorkerStarted:
      generation = message.worker_started().generation();
      break;
    case M::kWorkerReady:
      generation = message.worker_ready().generation();
      break;
    case M::kWorkerProgressed:
      generation = message.worker_progressed().generation();
      break;
    case M::kWorkerFailed:
      generation = message.worker_failed().generation();
      break;
    case M::kWorkerExited:
      generation = message.worker_exited().generation();
      break;
    case M::kGenerationStopped:
      generation = message.generation_stopped().generation();
      break;
    case M::kPublish:
      generation = message.publish().generation();
      break;
    case M::kAwait:
      generation = message.await().generation();
      break;
    case M::kEdgeReached:
      generation = message.edge_reached().generation();
      break;
    case M::kCheckpoint:
      generation = message.checkpoint().generation();
      break;
    case M::kWorkerResult:
      generation = message.worker_result().generation();
      break;
    case M::kWorkerStalled:
      generation = message.worker_stalled().generation();
      break;
    case M::kWorkersExamined:
      generation = message.workers_examined().generation();
      break;
    case M::kWorkersSignalled:
      generation = message.workers_signalled().generation();
      break;
    case M::kNodeUnhealthy:
      generation = message.node_unhealthy().generation();
      break;
    case M::kLeaving:
    case M::kHello:
    case M::kHeartbeat:
      return true;
    case M::kAnswer:  // of the handshake, which is the service's
    case M::MESSAGE_NOT_SET:
      return false;
  }
  return generation == state.generation.number &&
         (state.phase == Phase::kRunning || state.phase == Phase::kStopping);
}

void HandleResult(Turn& turn, const v1::WorkerResult& result) {
  if (result.rank() != 0) return;
  turn.state.generation.has_result = true;
  for (const auto& [key, value] : result.values()) turn.state.result_values[key] = value;
}

void Dispatch(Turn& turn, Node& node, const v1::AgentMessage& message) {
  using M = v1::AgentMessage;
  switch (message.message_case()) {
    case M::kHeartbeat:
      return HandleHeartbeat(turn, node, message.heartbeat());
    case M::kWorkerStarted:
      return HandleWorkerStarted(turn, message.worker_started());
    case M::kWorkerReady:
      return HandleWorkerReady(turn, message.worker_ready());
    case M::kWorkerProgressed:
      return HandleProgress(turn, message.worker_progressed());
    case M::kWorkerFailed:
      return HandleWorkerFailed(turn, message.worker_failed());
    case M::kWorkerExited:
      return HandleWorkerExited(turn, message.worker_exited());
    case M::kGenerationStopped:
      return HandleGenerationStopped(turn, node, message.generation_stopped());
    case M::kPublish:
      return HandlePublish(turn, node, message.publish());
    case M::kAwait:
      return HandleAwait(turn, node, message.await());
    case M::kEdgeReached:
      return HandleEdge(turn, message.edge_reached());
    case M::kCheckpoint:
      return HandleCheckpointFact(turn, message.checkpoint());
    case M::kWorkerResult:
      return HandleResult(turn, message.worker_result());
    case M::kLeaving:
      return HandleLeaving(turn, node, message.leaving());
    case M::kNodeUnhealthy:
      return HandleUnhealthy(turn, node, message.node_unhealthy());
    case M::kWorkerStalled:
      return HandleWorkerStalled(turn, message.worker_stalled());
    case M::kWorkersExamined:
      return HandleWorkersExamined(turn, node, message.workers_examined());
    case M::kWorkersSignalled:
      return HandleWorkersSignalled(turn, node, message.workers_signalled());
    case M::kHello:
    case M::kAnswer:
    case M::MESSAGE_NOT_SET:
      return;
  }
}

void HandleNodeMessage(Turn& turn, const NodeMessage& event) {
  if (event.message.has_hello()) return HandleHello(turn, event);
  auto found = turn.state.nodes.find(event.node);
  if (found == turn.state.nodes.end() || found->second.incarnation != event.incarnation) return;
  Node& node = found->second;
  if (event.stream != node.stream) return;  // of one that was replaced
  node.last_heard_ns = turn.now_ns;
  if (!node.link.Receive(event.message.sequence(), event.message.ack())) return;
  if (turn.state.phase == Phase::kFinished && !event.message.has_heartbeat()) return;
  if (event.message.has_generation_stopped() && node.stale_generation != 0 &&
      node.stale_generation == event.message.generation_stopped().generation()) {
    node.stale_generation = 0;
    ReleaseLeaving(turn);
    return MaybePlanGeneration(turn);
  }
  if (!SpeaksOfCurrentGeneration(turn.state, event.message)) {
    return RefuseStale(turn, node, event.message);
  }
  if (!MaySay(turn, node, event.message)) return;
  Dispatch(turn, node, event.message);
}

// A hook that fails is told, and changes nothing.
void HandleHookEnded(Turn& turn, const HookEnded& event) {
  if (event.ok) return;
  turn.Record("hook_failed",
              {{"hook", event.hook}, {"of", event.generation}, {"reason", event.reason}});
}

void HandleDetached(Turn& turn, const NodeDetached& event) {
  auto found = turn.state.nodes.find(event.node);
  if (found == turn.state.nodes.end() || found->second.incarnation != event.incarnation ||
      found->second.stream != event.stream) {
    return;
  }
  found->second.attached = false;
  if (found->second.released) {
    turn.state.nodes.erase(found);
    return;
  }
  // Without a lease the agent ends its workers as soon as the stream breaks.
  if (turn.state.spec.lease_seconds() == 0) LoseNode(turn, event.node, event.reason);
}

}  // namespace

std::vector<Effect> Step(State& state, const Event& event, int64_t now_ns) {
  std::vector<Effect> out;
  state.now_ns = now_ns;
  Turn turn{state, now_ns, out};
  if (const auto* e = std::get_if<JobSubmitted>(&event)) HandleSubmitted(turn, *e);
  if (const auto* e = std::get_if<NodeMessage>(&event)) HandleNodeMessage(turn, *e);
  if (const auto* e = std::get_if<NodeDetached>(&event)) HandleDetached(turn, *e);
  if (const auto* e = std::get_if<JoinRefused>(&event)) HandleJoinRefused(turn, *e);
  if (const auto* e = std::get_if<ResumeChosen>(&event)) StartGeneration(turn, *e);
  if (const auto* e = std::get_if<CheckpointStored>(&event)) HandleCheckpointStored(turn, *e);
  if (const auto* e = std::get_if<ControlAsked>(&event)) HandleControl(turn, *e);
  if (const auto* e = std::get_if<HookEnded>(&event)) HandleHookEnded(turn, *e);
  if (std::holds_alternative<TimePassed>(event)) HandleTime(turn);
  for (const std::string& name : turn.overflown) {
    LoseNode(turn, name, "more messages wait for it than it may leave unanswered");
  }
  TellPaused(turn);
  LookUpSilence(state);
  return out;
}

const char* CauseName(Cause cause) {
  switch (cause) {
    case Cause::kNone:
      return "unknown";
    case Cause::kWorkerError:
      return "worker_error";
    case Cause::kSignal:
      return "signal";
    case Cause::kOutOfMemory:
      return "oom";
    case Cause::kHang:
      return "hang";
    case Cause::kCommunicationUnknown:
      return "communication_unknown";
    case Cause::kNodeLost:
      return "node_lost";
    case Cause::kNodeUnhealthy:
      return "node_unhealthy";
    case Cause::kPortCollision:
      return "port_collision";
    case Cause::kStartFailed:
      return "start_failed";
    case Cause::kInitTimeout:
      return "init_timeout";
    case Cause::kKeeperDied:
      return "keeper_died";
    case Cause::kUnkillable:
      return "unkillable";
  }
  return "?";
}

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kWaiting:
      return "waiting for nodes";
    case Phase::kChoosing:
      return "choosing the checkpoint";
    case Phase::kRunning:
      return "running";
    case Phase::kStopping:
      return "stopping";
    case Phase::kBackingOff:
      return "waiting to restart";
    case Phase::kFinished:
      return "finished";
  }
  return "?";
}

}  // namespace ddprun::coordinator
