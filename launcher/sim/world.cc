#include "launcher/sim/world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ddprun::sim {
namespace {

// Longer than any wait that the rules allow once all is quiet: join timeout 30 s, back-off 8 s,
// grace 6 s, collective timeout 12 s, lease and margin 4 s, a fifth cool-down of 48 s, one after
// the other.
constexpr int64_t kStallNs = 140 * kSecondNs;
constexpr int64_t kExamineNs = 22 * kSecondNs;  // its bound, and messages that are sent again
constexpr int64_t kAgreeNs = 32 * kSecondNs;    // a rank may hang: the collective timeout, and more
constexpr uint64_t kEventsMax = 400'000;
// After the end the coordinator still answers for so long, so that agents hear of it.
constexpr int64_t kAfterEndNs = 500 * kMillisecondNs;

}  // namespace

World::World(const Scenario& scenario, const coordinator::Past& past, Disk& disk, Trace& trace)
    : scenario_(scenario),
      disk_(disk),
      trace_(trace),
      random_(scenario.random_seed),
      faults_ahead_(scenario.faults) {
  streams_.emplace_back();
  keepers_.emplace_back();
  checker_.set_newest_generation(past.generation);
  for (const NodePlan& plan : scenario.nodes) {
    SimNode node;
    node.plan = plan;
    node.up = true;
    nodes_.push_back(std::move(node));
  }
  past_ = past;
  Submit(past, scenario.spec.resume());
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    queue_.Push({.when_ns = nodes_[i].plan.joins_ns, .what = What::kAgentStarts, .node = i});
  }
}

JobReport World::Run() {
  int64_t end_ns = 0;
  while (!checker_.violated() && !queue_.empty()) {
    const SimEvent event = queue_.Pop();
    now_ns_ = std::max(now_ns_, event.when_ns);
    if (finished_ && end_ns == 0) end_ns = now_ns_ + kAfterEndNs;
    if (end_ns != 0 && now_ns_ > end_ns) break;
    const int64_t paused_until_ns = PausedUntil(event);
    if (paused_until_ns > now_ns_) {
      Defer(event, paused_until_ns);
      continue;
    }
    ++events_;
    if (nodes_[event.node].thaws) Thaw(nodes_[event.node]);
    Dispatch(event);
    InjectDueFaults();
    if (live_generations_ > 1) CheckTwoGenerations();
    CheckProgress();
  }
  if (!finished_ && !checker_.violated()) checker_.Violate("I4", "nothing is left to happen");
  JobReport report{events_, faults_,  checker_.generations(), checker_.newest_generation(),
                   now_ns_, outcome_, checker_.violation()};
  if (!report.violation.empty()) {
    report.violation = absl::StrCat("at ", now_ns_ / 1e9, " s, ", report.violation);
    Say("checker", report.violation);
  }
  return report;
}

void World::Say(const std::string& who, const std::string& what) {
  trace_.Line(now_ns_, events_, who, what);
}

void World::Disturb(int64_t until_ns) {
  quiet_from_ns_ = std::max(quiet_from_ns_, until_ns);
}

int64_t World::PausedUntil(const SimEvent& event) const {
  const SimNode& node = nodes_[event.node];
  if (event.what <= What::kCheckpointStored) return coordinator_paused_until_ns_;
  if (event.what <= What::kKeeperGone) {
    return std::max(node.paused_until_ns, node.agent_paused_until_ns);
  }
  if (event.what <= What::kWorkerEnds) return node.paused_until_ns;
  return 0;
}

// A timer that rang during a pause may be looked at before or after the messages that came
// meanwhile. The coordinator's loop always takes messages first.
void World::Defer(SimEvent event, int64_t until_ns) {
  event.when_ns = until_ns;
  const bool timer = event.what == What::kAgentTime || event.what == What::kKeeperTime;
  if (event.what == What::kCoordinatorTime || (timer && random_.Chance(0.5))) {
    if (event.what == What::kCoordinatorTime) coordinator_armed_ns_ = until_ns;
    return queue_.Push(event);
  }
  queue_.PushAgain(event);
}

// The first thing on a machine that runs again: workers of a keeper whose lease is over do not get
// to run (the keeper looks at its deadline before anything else).
void World::Thaw(SimNode& node) {
  if (node.paused_until_ns > now_ns_) return;
  node.thaws = false;
  for (SimKeeper& keeper : keepers_) {
    if (&nodes_[keeper.node] == &node && !keeper.gone) CheckDeadlines(keeper);
  }
}

void World::Dispatch(SimEvent event) {
  if (event.what <= What::kCheckpointStored) return DispatchToCoordinator(event);
  if (event.what <= What::kKeeperGone) return DispatchToAgent(event);
  if (event.what <= What::kWorkerEnds) return DispatchToKeeper(event);
  DispatchToWorld(event);
}

void World::DispatchToCoordinator(const SimEvent& event) {
  switch (event.what) {
    case What::kUp:
      return Arrived(event);
    case What::kDetached:
      return Detached(event);
    case What::kCoordinatorTime:
      return CoordinatorTime(event);
    case What::kResumeChosen: {
      const coordinator::ResumeChosen chosen = chosen_.Take(event.slot);
      if (event.rank != coordinator_number_) return;
      checker_.ResumeWasChosen(chosen, disk_);
      return StepCoordinator(chosen);
    }
    default:
      if (event.rank == coordinator_number_) CommitDone(event);
      return;
  }
}

void World::DispatchToAgent(const SimEvent& event) {
  SimNode& node = nodes_[event.node];
  if (event.what == What::kAgentStarts) {
    if (node.up && !node.agent_alive) StartAgent(event.node);
    return;
  }
  switch (event.what) {
    case What::kDown: {
      agent::CoordinatorSaid said{down_.Take(event.slot), 0, 0, event.id};
      if (!node.agent_alive || streams_[event.id].agent != node.agent_number) return;
      if (said.message.has_heartbeat_answer()) {
        const auto& answer = said.message.heartbeat_answer();
        const int64_t real_ns = now_ns_ + node.plan.clock_offset_ns;
        const int64_t sent_ns = answer.heartbeat_sent_ns();
        said.clock_offset_ns = answer.sent_ns() - (sent_ns + (real_ns - sent_ns) / 2);
        said.clock_uncertainty_ns = (real_ns - sent_ns) / 2;
      }
      return StepAgent(node, said);
    }
    case What::kConnects:
      if (node.agent_alive && node.agent_number == event.id) Connect(node);
      return;
    case What::kBroken:
      return Broken(node, event);
    case What::kAgentTime:
      return AgentTime(node, event);
    case What::kLeaveAgain:
      if (!node.agent_alive || node.agent_number != event.id) return;
      Disturb(now_ns_);
      return StepAgent(node, agent::LeaveAsked{"it was asked to again", false});
    case What::kKeeperSaid:
      return KeeperSaid(node, event);
    default:
      return KeeperGone(node, event);
  }
}

void World::DispatchToKeeper(const SimEvent& event) {
  SimKeeper& keeper = Keeper(event.id);
  if (!keeper.gone) CheckDeadlines(keeper);
  if (keeper.gone) {
    if (event.what == What::kTell) down_.Drop(event.slot);
    return;
  }
  SimWorker* worker = event.rank < keeper.workers.size() ? &keeper.workers[event.rank] : nullptr;
  switch (event.what) {
    case What::kKeeperStarts:
      return StartWorkers(keeper);
    case What::kKeeperTime:
      if (keeper.armed_ns == static_cast<int64_t>(event.number)) {
        keeper.armed_ns = 0;
        ArmKeeper(keeper);
      }
      return;
    case What::kStopOrder:
      return OrderKeeper(keeper, static_cast<v1::StopWorkers::Mode>(event.rank),
                         static_cast<int64_t>(event.number));
    case What::kLease:
      SetLease(keeper, static_cast<int64_t>(event.number));
      return ArmKeeper(keeper);
    case What::kAgentGone:
      return KillAll(keeper);
    case What::kTell: {
      const v1::CoordinatorMessage message = down_.Take(event.slot);
      if (worker->alive && !worker->ends) Hear(keeper, *worker, message);
      return;
    }
    case What::kStepDone:
      return StepDone(keeper, event.number);
    case What::kPeerLost:
      return PeerLost(keeper);
    case What::kExamined:
      return TellPlaces(keeper);
    default:
      break;
  }
  if (!worker->alive) return;
  switch (event.what) {
    case What::kWorkerBoots:
      return Boot(keeper, *worker);
    case What::kWorkerReady: {
      if (worker->ends || worker->hung) return;
      v1::AgentMessage message;
      message.mutable_worker_ready()->set_generation(keeper.generation);
      message.mutable_worker_ready()->set_rank(worker->rank);
      TellAgent(keeper, std::move(message));
      worker->stage = worker->completed >= scenario_.work.total_steps ? Stage::kEdge : Stage::kNext;
      return Proceed(keeper, *worker);
    }
    case What::kWorkerStalls:
      return TellStalled(keeper, *worker);
    case What::kShardDone:
      return ShardDone(keeper, *worker, event.number);
    default:
      return WorkerEnded(keeper, *worker, static_cast<int32_t>(event.number), 0);
  }
}

void World::DispatchToWorld(const SimEvent& event) {
  switch (event.what) {
    case What::kStreamBreaks:
      return BreakStream(event.id, Delay(), Delay());
    case What::kCollectiveTimeout:
      return CollectiveTimeout(event);
    case What::kNodeReturns:
      return NodeReturns(nodes_[event.node]);
    case What::kCoordinatorReturns:
      return CoordinatorReturns();
    default:
      return;
  }
}

void World::CheckTwoGenerations() {
  uint64_t seen = 0;
  for (const SimKeeper& keeper : keepers_) {
    if (keeper.alive == 0) continue;
    const SimNode& node = nodes_[keeper.node];
    // Its workers stand still, and are killed before they can run again.
    const bool fenced = node.paused_until_ns > now_ns_ && keeper.lease_until_ns != 0 &&
                        keeper.lease_until_ns <= node.paused_until_ns;
    if (fenced || seen == keeper.generation) continue;
    if (seen != 0) {
      checker_.Violate("I1",
                       absl::StrCat("workers of generations ", seen, " and ", keeper.generation,
                                    " run at once (the latter on ", node.plan.name, ")"));
      return;
    }
    seen = keeper.generation;
  }
}

void World::CheckProgress() {
  if (finished_) return;
  if (checkpoint_asked_ns_ != 0 &&
      now_ns_ - std::max(checkpoint_asked_ns_, quiet_from_ns_) > kAgreeNs) {
    checker_.Violate("I12", absl::StrCat("a checkpoint was asked for at ",
                                         checkpoint_asked_ns_ / 1e9, " s and not agreed since"));
  }
  if (coordinator_up_ && coordinator_.phase == coordinator::Phase::kRunning &&
      coordinator_.generation.number == stalled_generation_ &&
      now_ns_ - std::max(stalled_ns_, quiet_from_ns_) >
          kExamineNs + static_cast<int64_t>(scenario_.spec.grace_seconds() * kSecondNs)) {
    checker_.Violate("I16", absl::StrCat("a worker of generation ", stalled_generation_,
                                         " has been seen to stand still at ", stalled_ns_ / 1e9,
                                         " s, and it runs on"));
  }
  if (now_ns_ - std::max(progress_ns_, quiet_from_ns_) > kStallNs || events_ > kEventsMax) {
    checker_.Violate("I4",
                     absl::StrCat("no progress since ", progress_ns_ / 1e9, " s, all quiet since ",
                                  quiet_from_ns_ / 1e9, " s; the coordinator is ",
                                  coordinator::PhaseName(coordinator_.phase)));
  }
}

}  // namespace ddprun::sim
