// What goes wrong: each planned fault is put in after the event with its number, as soon as there
// is something that it can hit.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "launcher/sim/world.h"

namespace ddprun::sim {
namespace {

constexpr uint64_t kTryAgainEvents = 17;  // later, when nothing was there to be hit
constexpr int64_t kPauseMinNs = 200 * kMillisecondNs;
constexpr int64_t kPauseMaxNs = 10 * kSecondNs;
constexpr int64_t kCoordinatorPauseMaxNs = 5 * kSecondNs;
constexpr int64_t kCutMaxNs = 9 * kSecondNs;
constexpr int64_t kKeepAliveMinNs = 2 * kSecondNs;
constexpr int64_t kKeepAliveMaxNs = 6 * kSecondNs;
constexpr int64_t kReturnMinNs = kSecondNs;
constexpr int64_t kReturnMaxNs = 25 * kSecondNs;
constexpr double kNeverReturns = 0.3;
constexpr int64_t kAgentBackMinNs = 300 * kMillisecondNs;
constexpr int64_t kAgentBackMaxNs = 6 * kSecondNs;
constexpr int64_t kCoordinatorBackMaxNs = 8 * kSecondNs;
constexpr int64_t kLeaveAgainMaxNs = 4 * kSecondNs;
constexpr int64_t kLeaveMaxNs = 16 * kSecondNs;  // a grace, and the agent's patience after it
constexpr int32_t kSigInt = 2;
constexpr int32_t kSigKill = 9;
constexpr int32_t kSigTerm = 15;

}  // namespace

void World::InjectDueFaults() {
  if (events_ < next_fault_event_ || finished_ || checker_.violated()) return;
  for (size_t i = 0; i < faults_ahead_.size();) {
    FaultPlan& fault = faults_ahead_[i];
    if (fault.at_event > events_ || finished_) {
      ++i;
    } else if (Inject(fault.kind)) {
      faults_ahead_.erase(faults_ahead_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      fault.at_event = events_ + kTryAgainEvents;
      ++i;
    }
  }
  next_fault_event_ = std::numeric_limits<uint64_t>::max();
  for (const FaultPlan& fault : faults_ahead_) {
    next_fault_event_ = std::min(next_fault_event_, fault.at_event);
  }
}

bool World::Inject(FaultKind kind) {
  bool done = false;
  if (IsControl(kind)) {
    done = InjectControl(kind);
  } else if (kind <= FaultKind::kWorkerMistaken) {
    done = InjectIntoWorker(kind);
  } else if (kind == FaultKind::kShardFails) {
    done = shard_fails_ = true;
  } else if (kind == FaultKind::kCommitFails) {
    done = commit_fails_ = true;
  } else if (kind == FaultKind::kNewestCorrupt) {
    done = disk_.DamageNewest();
    if (done && tracing()) Say("FAULT", FaultName(kind));
  } else if (kind == FaultKind::kCoordinatorPaused) {
    done = coordinator_up_ && coordinator_paused_until_ns_ <= now_ns_;
    if (done)
      coordinator_paused_until_ns_ = now_ns_ + random_.Between(kPauseMinNs, kCoordinatorPauseMaxNs);
    if (done) Disturb(coordinator_paused_until_ns_);
    if (done && tracing()) {
      Say("FAULT", absl::StrCat(FaultName(kind), " until ", coordinator_paused_until_ns_ / 1e9));
    }
  } else if (kind == FaultKind::kCoordinatorKilled) {
    done = InjectCoordinatorDeath();
  } else if (SimNode* node = AnyNode()) {
    done = InjectIntoNode(kind, *node);
  }
  if (!done) return false;
  Disturb(now_ns_);
  if (!IsControl(kind)) ++faults_;
  return true;
}

bool World::InjectCoordinatorDeath() {
  if (!coordinator_up_) return false;
  const int64_t returns_ns = now_ns_ + random_.Between(kAgentBackMinNs, kCoordinatorBackMaxNs);
  if (tracing()) {
    Say("FAULT",
        absl::StrCat(FaultName(FaultKind::kCoordinatorKilled), " until ", returns_ns / 1e9));
  }
  KillCoordinator();
  Disturb(returns_ns);
  queue_.Push({.when_ns = returns_ns, .what = What::kCoordinatorReturns});
  return true;
}

// A living worker of a machine that is not paused.
SimWorker* World::AnyWorker(SimKeeper** keeper) {
  uint32_t count = 0;
  for (const SimKeeper& k : keepers_) {
    if (nodes_[k.node].paused_until_ns <= now_ns_) count += k.alive;
  }
  if (count == 0) return nullptr;
  uint64_t left = random_.Below(count);
  for (SimKeeper& k : keepers_) {
    if (nodes_[k.node].paused_until_ns > now_ns_) continue;
    for (SimWorker& worker : k.workers) {
      if (!worker.alive || left-- > 0) continue;
      *keeper = &k;
      return &worker;
    }
  }
  return nullptr;
}

bool World::InjectIntoWorker(FaultKind kind) {
  const int count = kind == FaultKind::kTwoWorkersKilled ? 2 : 1;
  for (int i = 0; i < count; ++i) {
    SimKeeper* keeper = nullptr;
    SimWorker* worker = AnyWorker(&keeper);
    if (worker == nullptr || (worker->ends && kind != FaultKind::kWorkerKilled)) return i > 0;
    // Only its peers' deadlines show a hang, so one that no peer waits for any more is none.
    Gang& gang = gangs_[keeper->gang];
    if (kind == FaultKind::kWorkerHangs &&
        (worker->stage > Stage::kStepping || gang.one_hangs || gang.world_size == 1 ||
         worker->completed + 1 >= scenario_.work.total_steps)) {
      return false;
    }
    if (tracing()) Say("FAULT", absl::StrCat(FaultName(kind), ": rank ", worker->rank));
    switch (kind) {
      case FaultKind::kWorkerError:
        FailAndEnd(*keeper, *worker, v1::WorkerFailed::ERROR, "an error of its own");
        break;
      case FaultKind::kWorkerConfig:
        FailAndEnd(*keeper, *worker, v1::WorkerFailed::CONFIG, "a configuration error");
        break;
      case FaultKind::kWorkerCollides:
        FailAndEnd(*keeper, *worker, v1::WorkerFailed::PORT_COLLISION, "the address is in use");
        break;
      case FaultKind::kWorkerMistaken:
        FailAndEnd(*keeper, *worker, v1::WorkerFailed::COMMUNICATION, "a peer seems to be gone");
        break;
      case FaultKind::kWorkerHangs:
        worker->hung = gang.one_hangs = true;
        StandStill(*keeper, *worker);
        break;
      case FaultKind::kWorkerExits:
        WorkerEnded(*keeper, *worker, kCodeOfExit, 0);
        break;
      default:
        WorkerEnded(*keeper, *worker, 0, kSigKill);
        break;
    }
  }
  return true;
}

// One that is up, with its agent running.
SimNode* World::AnyNode() {
  SimNode& node = nodes_[random_.Below(nodes_.size())];
  return node.up && node.agent_alive && node.paused_until_ns <= now_ns_ ? &node : nullptr;
}

bool World::InjectIntoNode(FaultKind kind, SimNode& node) {
  const auto index = static_cast<uint32_t>(&node - nodes_.data());
  const int64_t pause_ns = random_.Between(kPauseMinNs, kPauseMaxNs);
  if (kind == FaultKind::kKeeperKilled && (node.keeper == 0 || Keeper(node.keeper).gone)) {
    return false;
  }
  if (kind == FaultKind::kStreamBreaks && node.stream == 0) return false;
  if (tracing()) Say("FAULT", absl::StrCat(FaultName(kind), ": ", node.plan.name));
  switch (kind) {
    case FaultKind::kNodePaused:
      node.paused_until_ns = now_ns_ + pause_ns;
      node.thaws = true;
      // On a single node the coordinator lives there too.
      if (scenario_.single_node) {
        coordinator_paused_until_ns_ = std::max(coordinator_paused_until_ns_, node.paused_until_ns);
      }
      Disturb(node.paused_until_ns);
      break;
    case FaultKind::kAgentPaused:
      node.agent_paused_until_ns = now_ns_ + pause_ns;
      Disturb(node.agent_paused_until_ns);
      break;
    case FaultKind::kNodeDies:
      KillNode(node);
      break;
    case FaultKind::kAgentLeavesTwice:
      queue_.Push({.when_ns = now_ns_ + random_.Between(0, kLeaveAgainMaxNs),
                   .what = What::kLeaveAgain,
                   .node = index,
                   .id = node.agent_number});
      [[fallthrough]];
    case FaultKind::kAgentLeaves:
    case FaultKind::kAgentLeavesNow: {
      const bool at_once = kind == FaultKind::kAgentLeavesNow;
      // Its end, and that it is started again some time later, comes as the core decides.
      StepAgent(node, agent::LeaveAsked{"it was asked to", at_once});
      Disturb(now_ns_ + kLeaveMaxNs);
      return true;
    }
    case FaultKind::kAgentKilled:
      EndAgent(node);
      break;
    case FaultKind::kKeeperKilled:
      KillKeeper(Keeper(node.keeper));
      break;
    case FaultKind::kStreamBreaks:
      BreakStream(node.stream, Delay(), Delay());
      break;
    case FaultKind::kPartition:
      CutOff(node);
      break;
    default:
      node.spawn_fails = true;
      break;
  }
  if (node.up && !node.agent_alive) {
    queue_.Push({.when_ns = now_ns_ + random_.Between(kAgentBackMinNs, kAgentBackMaxNs),
                 .what = What::kAgentStarts,
                 .node = index});
  }
  return true;
}

// All its processes vanish, and nobody is told.
void World::KillNode(SimNode& node) {
  for (SimKeeper& keeper : keepers_) {
    if (&nodes_[keeper.node] != &node || keeper.gone) continue;
    for (SimWorker& worker : keeper.workers) {
      if (worker.alive) RemoveLive(keeper, worker);
    }
    keeper.gone = true;
  }
  if (node.stream != 0) {
    BreakStream(node.stream, -1, random_.Between(kKeepAliveMinNs, kKeepAliveMaxNs));
  }
  node.stream = 0;
  node.keeper = 0;
  node.agent_alive = false;
  node.agent_paused_until_ns = 0;
  node.up = false;
  if (random_.Chance(kNeverReturns)) return;
  const int64_t returns_ns = now_ns_ + random_.Between(kReturnMinNs, kReturnMaxNs);
  Disturb(returns_ns);
  queue_.Push({.when_ns = returns_ns,
               .what = What::kNodeReturns,
               .node = static_cast<uint32_t>(&node - nodes_.data())});
}

void World::NodeReturns(SimNode& node) {
  node.up = true;
  queue_.Push({.when_ns = now_ns_ + Delay(),
               .what = What::kAgentStarts,
               .node = static_cast<uint32_t>(&node - nodes_.data())});
}

// Both directions, or one of them only.
void World::CutOff(SimNode& node) {
  const int64_t until_ns = now_ns_ + random_.Between(kPauseMinNs, kCutMaxNs);
  const uint64_t directions = random_.Below(3);
  if (directions != 1) node.cut_up_until_ns = until_ns;
  if (directions != 2) node.cut_down_until_ns = until_ns;
  Disturb(until_ns);
  const int64_t noticed_ns = now_ns_ + random_.Between(kKeepAliveMinNs, kKeepAliveMaxNs);
  if (node.stream == 0 || noticed_ns > until_ns) return;
  queue_.Push({.when_ns = noticed_ns, .what = What::kStreamBreaks, .id = node.stream});
}

// As the coordinator sees it: it can ask them for an edge.
bool World::EveryRankTrains() const {
  const auto& workers = coordinator_.generation.workers;
  return coordinator_.phase == coordinator::Phase::kRunning &&
         std::all_of(workers.begin(), workers.end(),
                     [](const coordinator::Worker& w) { return w.ready && !w.exited; });
}

bool World::InjectControl(FaultKind kind) {
  if (!coordinator_up_ || coordinator_paused_until_ns_ > now_ns_) return false;
  coordinator::ControlAsked asked;
  asked.action = kind == FaultKind::kAskCheckpoint ? v1::ControlRequest::CHECKPOINT
                 : kind == FaultKind::kAskStop     ? v1::ControlRequest::STOP
                                                   : v1::ControlRequest::KILL;
  static constexpr int32_t kSignals[] = {0, kSigInt, kSigTerm};
  if (kind != FaultKind::kAskCheckpoint) asked.signal = kSignals[random_.Below(3)];
  if (tracing()) Say("FAULT", absl::StrCat(FaultName(kind), ", signal ", asked.signal));
  if (kind != FaultKind::kAskCheckpoint) checker_.StopWasAsked(!finished_, asked.signal);
  const bool wanted = kind == FaultKind::kAskCheckpoint && EveryRankTrains();
  StepCoordinator(asked);
  if (wanted) checkpoint_asked_ns_ = now_ns_;
  return true;
}

}  // namespace ddprun::sim
