// One simulated job: the real coordinator core, a real agent core per node, and everything around
// them (network, keepers, workers, disk) under a virtual clock.
//
// Run() takes events in the order of the queue until the job is over or an invariant breaks. Each
// event belongs to one process; while that process or its machine is paused, its events wait and
// its clock goes on. All chance comes from one Random, so a scenario plays the same way each time.
// Single-threaded; worlds share nothing.
//
// The methods stand in files by whose process they play: world_coordinator.cc, world_agent.cc,
// world_network.cc, world_keeper.cc, world_worker.cc, world_gang.cc, world_faults.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "launcher/coordinator/core.h"
#include "launcher/sim/checker.h"
#include "launcher/sim/disk.h"
#include "launcher/sim/parts.h"
#include "launcher/sim/queue.h"
#include "launcher/sim/random.h"
#include "launcher/sim/scenario.h"
#include "launcher/sim/trace.h"

namespace ddprun::sim {

// What one job leaves for the summary and for the next job of the same seed.
struct JobReport {
  uint64_t events = 0;
  uint64_t faults = 0;
  uint64_t generations = 0;
  uint64_t newest_generation = 0;
  int64_t virtual_ns = 0;
  coordinator::Outcome outcome;
  std::string violation;  // "": all is well
};

class World {
 public:
  // `disk` and `trace` outlive the world. `past` is what earlier jobs of this run folder left.
  World(const Scenario& scenario, const coordinator::Past& past, Disk& disk, Trace& trace);
  JobReport Run();

 private:
  // ---- world.cc: the clock and who gets what
  void Submit(const coordinator::Past& past, bool resume);
  void Thaw(SimNode& node);
  void Dispatch(SimEvent event);
  // Until when the process that this event belongs to stands still; 0: it runs.
  int64_t PausedUntil(const SimEvent& event) const;
  void Defer(SimEvent event, int64_t until_ns);
  void DispatchToCoordinator(const SimEvent& event);
  void DispatchToAgent(const SimEvent& event);
  void DispatchToKeeper(const SimEvent& event);
  void DispatchToWorld(const SimEvent& event);
  void CheckTwoGenerations();
  void CheckProgress();
  void CheckFailure();
  void CheckSuccess();
  void NoteProgress() { progress_ns_ = now_ns_; }
  // Faults, losses and pauses end here; from then on the job must go on.
  void Disturb(int64_t until_ns);
  void Say(const std::string& who, const std::string& what);
  bool tracing() const { return trace_.on(); }

  // ---- world_coordinator.cc: the coordinator's shell
  void StepCoordinator(const coordinator::Event& event);
  void ArmCoordinator();
  void CoordinatorTime(const SimEvent& event);
  // Its process is gone: streams break, and what the disk was doing for it is not done.
  void KillCoordinator();
  // The same run folder, another process.
  void CoordinatorReturns();
  void Do(coordinator::SendToNode& effect);
  void Do(coordinator::CloseNode& effect);
  void Do(coordinator::RecordEvent& effect);
  void Do(coordinator::PersistGeneration& effect);
  void Do(coordinator::ChooseResume& effect);
  void Do(coordinator::CommitCheckpoint& effect);
  void Do(coordinator::DropStaging& effect);
  void Do(coordinator::WriteHangReport& effect);
  void Do(coordinator::RunHook& effect);
  void Do(coordinator::FinishJob& effect);
  void CommitDone(const SimEvent& event);
  int64_t DiskTime();

  // ---- world_agent.cc: an agent's shell
  void StartAgent(uint32_t node);
  void StepAgent(SimNode& node, const agent::Event& event);
  void ArmAgent(SimNode& node);
  void AgentTime(SimNode& node, const SimEvent& event);
  void Do(SimNode& node, agent::SendUp& effect);
  void Do(SimNode& node, agent::SpawnKeeper& effect);
  void Do(SimNode& node, agent::OrderKeeper& effect);
  void Do(SimNode& node, agent::TellWorker& effect);
  void Do(SimNode& node, agent::SignalWorkers& effect);
  void Do(SimNode& node, agent::ExamineWorkers& effect);
  void Do(SimNode& node, agent::RenewLease& effect);
  void Do(SimNode& node, agent::Reconnect& effect);
  void Do(SimNode& node, agent::End& effect);
  // The agent's process is gone; its stream breaks and its keeper sees the end of its socket.
  void EndAgent(SimNode& node);
  void KeeperSaid(SimNode& node, const SimEvent& event);
  void KeeperGone(SimNode& node, const SimEvent& event);

  // ---- world_network.cc
  void Connect(SimNode& node);
  void SendUpstream(SimNode& node, v1::AgentMessage message);
  void SendDownstream(uint32_t stream, v1::CoordinatorMessage message);
  void BreakStream(uint32_t stream, int64_t agent_learns_ns, int64_t server_learns_ns);
  int64_t Delay();
  void Arrived(const SimEvent& event);
  void Detached(const SimEvent& event);
  void Broken(SimNode& node, const SimEvent& event);

  // ---- world_keeper.cc
  void SpawnKeeper(SimNode& node, const agent::SpawnKeeper& spawn);
  void StartWorkers(SimKeeper& keeper);
  SimKeeper& Keeper(uint32_t id) { return keepers_[id]; }
  // Its first act whenever it runs: kills what may not live any more.
  void CheckDeadlines(SimKeeper& keeper);
  void SetLease(SimKeeper& keeper, int64_t until_ns);
  void ArmKeeper(SimKeeper& keeper);
  void OrderKeeper(SimKeeper& keeper, v1::StopWorkers::Mode mode, int64_t grace_ns);
  void KillAll(SimKeeper& keeper);
  // Its keeper will see it, when the hang timeout is over.
  void StandStill(SimKeeper& keeper, SimWorker& worker);
  void TellStalled(SimKeeper& keeper, const SimWorker& worker);
  void TellPlaces(SimKeeper& keeper);
  // Its own death takes its workers with it.
  void KillKeeper(SimKeeper& keeper);
  void WorkerEnded(SimKeeper& keeper, SimWorker& worker, int32_t code, int32_t signal);
  void FinishKeeper(SimKeeper& keeper, bool died);
  void TellAgent(SimKeeper& keeper, v1::AgentMessage fact);
  void PushToAgent(SimKeeper& keeper, SimEvent event);
  void PushToKeeper(SimNode& node, SimEvent event);
  void RemoveLive(SimKeeper& keeper, SimWorker& worker);

  // ---- world_worker.cc
  void Boot(SimKeeper& keeper, SimWorker& worker);
  void Hear(SimKeeper& keeper, SimWorker& worker, const v1::CoordinatorMessage& message);
  void HearEdge(SimKeeper& keeper, SimWorker& worker, const v1::EdgeRequest& request);
  void HearAgreed(SimKeeper& keeper, SimWorker& worker, const v1::CheckpointAt& at);
  void HearSettled(SimKeeper& keeper, SimWorker& worker, const v1::CheckpointSettled& settled);
  void Proceed(SimKeeper& keeper, SimWorker& worker);
  bool AtEdge(SimKeeper& keeper, SimWorker& worker);
  void BeginCheckpoint(SimKeeper& keeper, SimWorker& worker);
  void ShardDone(SimKeeper& keeper, SimWorker& worker, uint64_t step);
  void Report(SimKeeper& keeper, SimWorker& worker);
  void FailAndEnd(SimKeeper& keeper, SimWorker& worker, v1::WorkerFailed::Kind kind,
                  const char* text);
  void EndSoon(SimKeeper& keeper, SimWorker& worker, int32_t code, int64_t after_ns);
  void SendCheckpointFact(SimKeeper& keeper, SimWorker& worker, uint64_t step,
                          v1::CheckpointFact::What what);

  // ---- world_gang.cc: the workers' communicator
  Gang& GangOf(const v1::StartWorkers& order, uint32_t* index);
  void ConnectGang(SimKeeper& keeper, SimWorker& worker);
  void EnterStep(SimKeeper& keeper, SimWorker& worker);
  void StepDone(SimKeeper& keeper, uint64_t step);
  void BreakGang(SimKeeper& keeper);
  void LosePeers(Gang& gang, int64_t after_min_ns, int64_t after_max_ns);
  void PeerLost(SimKeeper& keeper);
  void CollectiveTimeout(const SimEvent& event);

  // ---- world_faults.cc
  void InjectDueFaults();
  // False when there is nothing that it could hit now.
  bool Inject(FaultKind kind);
  bool InjectIntoWorker(FaultKind kind);
  bool InjectIntoNode(FaultKind kind, SimNode& node);
  bool InjectControl(FaultKind kind);
  bool InjectCoordinatorDeath();
  bool EveryRankTrains() const;
  SimWorker* AnyWorker(SimKeeper** keeper);
  SimNode* AnyNode();
  void KillNode(SimNode& node);
  void NodeReturns(SimNode& node);
  void CutOff(SimNode& node);

  const Scenario& scenario_;
  Disk& disk_;
  Trace& trace_;
  Random random_;
  Checker checker_;
  EventQueue queue_;
  int64_t now_ns_ = 0;
  uint64_t events_ = 0;
  uint64_t faults_ = 0;

  coordinator::State coordinator_;
  uint32_t coordinator_number_ = 1;  // counts its processes
  bool coordinator_up_ = true;
  int64_t coordinator_armed_ns_ = 0;
  int64_t coordinator_paused_until_ns_ = 0;
  uint64_t generation_before_ = 0;  // the newest of earlier processes of the coordinator
  coordinator::Past past_;          // what the events of this run folder tell so far
  int64_t disk_free_ns_ = 0;        // the I/O thread does one thing at a time
  bool commit_fails_ = false;
  bool shard_fails_ = false;
  bool finished_ = false;
  coordinator::Outcome outcome_;

  std::vector<SimNode> nodes_;
  std::vector<Stream> streams_;    // by id; 0 is none
  std::deque<SimKeeper> keepers_;  // by id; 0 is none
  std::deque<Gang> gangs_;
  Pool<v1::AgentMessage> up_;
  Pool<v1::CoordinatorMessage> down_;
  Pool<coordinator::ResumeChosen> chosen_;
  int32_t next_pid_ = 1000;

  std::vector<uint32_t> live_;     // living workers by gang
  uint32_t live_generations_ = 0;  // gangs with living workers
  std::vector<FaultPlan> faults_ahead_;
  uint64_t next_fault_event_ = 0;
  int64_t quiet_from_ns_ = 0;  // no disturbance after this
  int64_t progress_ns_ = 0;
  int64_t stalled_ns_ = 0;  // when a keeper sees a hang of `stalled_generation_`
  uint64_t stalled_generation_ = 0;
  int64_t checkpoint_asked_ns_ = 0;  // and not agreed yet; 0: none
  uint64_t best_step_ = 0;
};

}  // namespace ddprun::sim
