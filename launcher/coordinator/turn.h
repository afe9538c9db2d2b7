// What one Step works with, and the transitions that its parts share. Internal to the coordinator's
// core.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/coordinator/core.h"

namespace ddprun::coordinator {

// Generation.end_reason where every worker ended by itself, with 0.
constexpr char kFinishedReason[] = "finished";

struct Turn {
  State& state;
  int64_t now_ns;
  std::vector<Effect>& out;

  // An event of events.jsonl about the current generation.
  void Record(const char* name, nlohmann::ordered_json fields);
  // Numbered, so that it arrives once and in order.
  void Send(Node& node, v1::CoordinatorMessage message);
  void SendToMembers(const v1::CoordinatorMessage& message);
  Node* MemberOf(const Placement& placement);
  bool IsMember(const std::string& node) const;

  // Nodes whose link holds more than it may; lost at the end of the Step.
  std::vector<std::string> overflown{};
};

// core_join.cc: who comes in, and who does not.
void HandleHello(Turn& turn, const NodeMessage& event);
void HandleJoinRefused(Turn& turn, const JoinRefused& refused);
// Tells what was counted since, once a second.
void TellTallies(Turn& turn);
int64_t NextTallyNs(const State& state);

// core_gate.cc: a node speaks for its own ranks only. False: dropped and counted.
bool MaySay(Turn& turn, const Node& node, const v1::AgentMessage& message);

// core_resize.cc: nodes that leave, and newcomers that are taken in.
void HandleLeaving(Turn& turn, Node& node, const v1::Leaving& leaving);
// The job goes on, and nothing runs any more on these nodes that leave: they may go.
void ReleaseLeaving(Turn& turn);
// Something has changed that may let newcomers in.
void ConsiderGrowth(Turn& turn);
void GrowIfDue(Turn& turn);
// The generation that is over was ended for a resize, and not by its own end.
bool WasResized(const State& state);
void AfterResize(Turn& turn);

// core_nodes.cc: who is here.
void HandleHeartbeat(Turn& turn, Node& node, const v1::Heartbeat& heartbeat);
// `cut`: its stream is ended from here; otherwise the agent ends it, having read why.
void LoseNode(Turn& turn, std::string name, const std::string& reason, bool cut = true);
void LoseSilentNodes(Turn& turn);
// Looks up when the next node may be lost by its silence, where that is not known.
void LookUpSilence(State& state);

// core_generation.cc: from one generation to the next.
void WaitForNodes(Turn& turn);
// `late`: the time to wait for more nodes than are needed is over.
void MaybePlanGeneration(Turn& turn, bool late = false);
void StartGeneration(Turn& turn, const ResumeChosen& chosen);
void EndGeneration(Turn& turn, bool failed, const std::string& reason, v1::StopWorkers::Mode mode);
void HandleWorkerExited(Turn& turn, const v1::WorkerExited& exited);
void HandleGenerationStopped(Turn& turn, Node& node, const v1::GenerationStopped& stopped);
// The time in which a cause could show itself is over.
void EndForLostPeers(Turn& turn);
void AfterStop(Turn& turn);
void Finish(Turn& turn, Outcome outcome);
void FinishStopped(Turn& turn);  // as it was asked for

// core_failure.cc: what follows a generation that failed.
// Whether the generation had got going, so that its failure is not one of the start.
bool HadStarted(const Turn& turn);
void AfterFailure(Turn& turn);

// core_unhealthy.cc: nodes that do not get fit for a generation.
void HandleUnhealthy(Turn& turn, const Node& node, const v1::NodeUnhealthy& unhealthy);
// After a generation: nodes whose address nobody reaches are refused.
void SendUnreachableAway(Turn& turn);

// core_deadlines.cc: what is due by time.
void HandleTime(Turn& turn);
// "2 of 3 nodes are here: a, b; missing: c" while nodes are awaited; else "".
std::string WaitingText(const State& state);

// core_progress.cc: what workers say while they run.
void HandleWorkerStarted(Turn& turn, const v1::WorkerStarted& started);
void HandleWorkerReady(Turn& turn, const v1::WorkerReady& ready);
void HandleWorkerFailed(Turn& turn, const v1::WorkerFailed& failed);
void HandleProgress(Turn& turn, const v1::WorkerProgressed& progressed);
// L26, S12: a worker of another generation learns that it gets nothing.
void RefuseStale(Turn& turn, Node& node, const v1::AgentMessage& message);
void HandlePublish(Turn& turn, Node& node, const v1::Publish& publish);
void HandleAwait(Turn& turn, Node& node, const v1::Await& await);

// core_hang.cc: what stands still.
void HandleWorkerStalled(Turn& turn, const v1::WorkerStalled& stalled);
void HandleWorkersExamined(Turn& turn, const Node& node, const v1::WorkersExamined& examined);
// L65: not every rank was ready in time. It is looked where they stand before they are ended.
void ExamineForInitTimeout(Turn& turn);
// All have answered, or their time is over.
void ConcludeExamination(Turn& turn);

// core_pause.cc: Ctrl-Z and fg.
void AskToPause(Turn& turn);
void AskToContinue(Turn& turn);
void HandleWorkersSignalled(Turn& turn, const Node& node, const v1::WorkersSignalled& signalled);
// At the end of each Step: tells it once everything stands still.
void TellPaused(Turn& turn);

// core_checkpoint.cc: agreed steps, shards, commits, stops.
void HandleCheckpointFact(Turn& turn, const v1::CheckpointFact& fact);
void HandleCheckpointStored(Turn& turn, const CheckpointStored& stored);
bool AllReadyAndAlive(const Generation& g);
void DropCheckpoint(Turn& turn, const std::string& reason);
void HandleEdge(Turn& turn, const v1::EdgeReached& edge);
void HandleControl(Turn& turn, const ControlAsked& asked);
void AskToStop(Turn& turn, const ControlAsked& asked);
// Tells the agreed step once every rank that still runs has named its edge.
void ConcludeAgreement(Turn& turn);
// Asks for an agreed step if one is wanted and none is being agreed.
void MaybeRequestEdge(Turn& turn);

// How long a node may be silent before it is replaced (DESIGN section 3: lease + 1 s), in ns.
int64_t SilenceNs(const State& state);
// How long the workers of a stop get, in ns.
int64_t GraceNs(const State& state);
v1::CoordinatorMessage StopMessage(const v1::StopWorkers& order);

}  // namespace ddprun::coordinator
