// The workers' communicator: they connect together, train in lock-step, and notice in their own
// time that a peer is gone. It is the data plane, of which the control plane sees nothing.
#include <algorithm>

#include "launcher/sim/world.h"

namespace ddprun::sim {
namespace {

constexpr int64_t kConnectMaxNs = 60 * kMillisecondNs;
constexpr int64_t kSkewNs = 3 * kMillisecondNs;  // between ranks at the end of a step
constexpr int64_t kPeerLostMinNs = 3 * kMillisecondNs;
constexpr int64_t kPeerLostMaxNs = 400 * kMillisecondNs;
constexpr int64_t kCollectiveTimeoutNs = 12 * kSecondNs;

}  // namespace

Gang& World::GangOf(const v1::StartWorkers& order, uint32_t* index) {
  for (size_t i = gangs_.size(); i > 0; --i) {
    if (gangs_[i - 1].generation != order.generation()) continue;
    *index = static_cast<uint32_t>(i - 1);
    return gangs_[i - 1];
  }
  Gang gang;
  gang.generation = order.generation();
  gang.world_size = order.world_size();
  gang.group_world_size = order.group_world_size();
  gang.resume_step = order.resume_step();
  gang.step = order.resume_step() + 1;
  gang.ranks.resize(order.world_size());
  gangs_.push_back(std::move(gang));
  queue_.Push({.when_ns = now_ns_ + kCollectiveTimeoutNs,
               .what = What::kCollectiveTimeout,
               .id = static_cast<uint32_t>(gangs_.size() - 1),
               .number = 0});
  live_.push_back(0);
  *index = static_cast<uint32_t>(gangs_.size() - 1);
  return gangs_.back();
}

void World::ConnectGang(SimKeeper& keeper, SimWorker& worker) {
  Gang& gang = gangs_[keeper.gang];
  worker.stage = Stage::kConnecting;
  if (++gang.connected < gang.world_size || gang.broken) return;
  for (uint32_t id : gang.keepers) {
    SimKeeper& member = Keeper(id);
    for (uint32_t i = 0; i < member.workers.size(); ++i) {
      if (!member.workers[i].alive) continue;
      member.workers[i].stage = Stage::kConnected;
      queue_.Push({.when_ns = now_ns_ + random_.Between(0, kConnectMaxNs),
                   .what = What::kWorkerReady,
                   .node = member.node,
                   .id = id,
                   .rank = i});
    }
  }
}

void World::EnterStep(SimKeeper& keeper, SimWorker& worker) {
  Gang& gang = gangs_[keeper.gang];
  worker.stage = Stage::kStepping;
  if (worker.rank == 0) gang.rank_zero_in_flight = worker.in_flight != 0;
  if (++gang.arrived == 1) {
    queue_.Push({.when_ns = now_ns_ + kCollectiveTimeoutNs,
                 .what = What::kCollectiveTimeout,
                 .id = keeper.gang,
                 .number = gang.step});
  }
  if (gang.arrived < gang.world_size || gang.broken) return;
  const WorkPlan& work = scenario_.work;
  // Rank 0 decides for all, by a value that travels with the gradients.
  if (gang.step % work.checkpoint_every == 0 && gang.rank_zero_in_flight) {
    gang.skipped_step = gang.step;
  }
  for (uint32_t id : gang.keepers) {
    queue_.Push({.when_ns = now_ns_ + work.step_ns + random_.Between(0, kSkewNs),
                 .what = What::kStepDone,
                 .node = Keeper(id).node,
                 .id = id,
                 .number = gang.step});
  }
  ++gang.step;
  gang.arrived = 0;
}

void World::StepDone(SimKeeper& keeper, uint64_t step) {
  for (SimWorker& worker : keeper.workers) {
    if (!worker.alive || worker.ends || worker.hung) continue;
    if (worker.stage != Stage::kStepping || worker.completed + 1 != step) continue;
    worker.completed = step;
    worker.stage = Stage::kEdge;
    Report(keeper, worker);
    Proceed(keeper, worker);
  }
}

// A member ended in the middle: its peers notice, each at its own moment.
void World::BreakGang(SimKeeper& keeper) {
  Gang& gang = gangs_[keeper.gang];
  if (gang.broken) return;
  gang.broken = true;
  LosePeers(gang, kPeerLostMinNs, kPeerLostMaxNs);
}

void World::LosePeers(Gang& gang, int64_t after_min_ns, int64_t after_max_ns) {
  for (uint32_t id : gang.keepers) {
    if (Keeper(id).gone) continue;
    queue_.Push({.when_ns = now_ns_ + random_.Between(after_min_ns, after_max_ns),
                 .what = What::kPeerLost,
                 .node = Keeper(id).node,
                 .id = id});
  }
}

void World::PeerLost(SimKeeper& keeper) {
  const Gang& gang = gangs_[keeper.gang];
  for (SimWorker& worker : keeper.workers) {
    const bool in_collective =
        worker.stage == Stage::kStepping || worker.stage == Stage::kExchanging ||
        worker.stage == Stage::kConnecting || worker.stage == Stage::kConnected;
    if (!worker.alive || worker.ends || worker.hung || !in_collective) continue;
    // A deadline of its own ends each; only the death of a peer may leave one hanging.
    if (!gang.timed_out && random_.Chance(scenario_.work.peers_hang)) {
      worker.hung = true;
      continue;
    }
    FailAndEnd(keeper, worker, v1::WorkerFailed::COMMUNICATION, "a peer is gone");
  }
}

void World::CollectiveTimeout(const SimEvent& event) {
  Gang& gang = gangs_[event.id];
  if (gang.one_hangs && scenario_.spec.supervision().hang_timeout_seconds() > 0) return;
  // Number 0 is the time for connecting.
  const bool late =
      event.number == 0 ? gang.connected < gang.world_size : gang.step == event.number;
  if (!late || gang.broken) return;
  gang.broken = gang.timed_out = true;
  LosePeers(gang, 0, kPeerLostMaxNs);
}

}  // namespace ddprun::sim
