// Keepers, after proto/keeper_protocol.md: start workers, watch them, end them when ordered or when
// the lease is over.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/sim/world.h"

namespace ddprun::sim {
namespace {

constexpr int64_t kAbortNs = 500 * kMillisecondNs;  // from Abort to KILL
constexpr int64_t kSpawnMinNs = kMillisecondNs;     // until the keeper runs
constexpr int64_t kSpawnMaxNs = 30 * kMillisecondNs;
constexpr int64_t kBootMinNs = 50 * kMillisecondNs;
constexpr int64_t kBootMaxNs = 400 * kMillisecondNs;
constexpr int64_t kLocalMaxNs = 300'000;
constexpr int32_t kSigKill = 9;
constexpr int32_t kSigTerm = 15;
constexpr int32_t kExitOnAbort = 1;

}  // namespace

void World::SpawnKeeper(SimNode& node, const agent::SpawnKeeper& spawn) {
  const v1::StartWorkers& order = spawn.order;
  keepers_.emplace_back();
  SimKeeper& keeper = keepers_.back();
  keeper.id = static_cast<uint32_t>(keepers_.size() - 1);
  keeper.node = static_cast<uint32_t>(&node - nodes_.data());
  keeper.agent = node.agent_number;
  keeper.generation = order.generation();
  keeper.first_rank = order.first_rank();
  SetLease(keeper, spawn.lease_until_ns);
  node.keeper = keeper.id;
  Gang& gang = GangOf(order, &keeper.gang);
  checker_.NodeStarts(order, gang);
  gang.keepers.push_back(keeper.id);
  keeper.workers.resize(order.local_world_size());
  for (uint32_t i = 0; i < keeper.workers.size(); ++i) {
    keeper.workers[i].rank = order.first_rank() + i;
    keeper.workers[i].completed = order.resume_step();
  }
  node.to_keeper_ns =
      std::max(node.to_keeper_ns, now_ns_ + random_.Between(kSpawnMinNs, kSpawnMaxNs));
  PushToKeeper(node, {.what = What::kKeeperStarts});
}

// A keeper that comes to life after its lease starts nothing.
void World::StartWorkers(SimKeeper& keeper) {
  if (keeper.mode == v1::StopWorkers::KILL) return FinishKeeper(keeper, /*died=*/false);
  const SimNode& node = nodes_[keeper.node];
  if (tracing()) {
    Say(node.plan.name, absl::StrCat("keeper ", keeper.id, " starts g", keeper.generation,
                                     " ranks ", keeper.first_rank, "+", keeper.workers.size()));
  }
  if (live_[keeper.gang] == 0) ++live_generations_;
  for (uint32_t i = 0; i < keeper.workers.size(); ++i) {
    SimWorker& worker = keeper.workers[i];
    worker.pid = next_pid_++;
    worker.alive = true;
    ++keeper.alive;
    ++live_[keeper.gang];
    queue_.Push({.when_ns = now_ns_ + random_.Between(kBootMinNs, kBootMaxNs),
                 .what = What::kWorkerBoots,
                 .node = keeper.node,
                 .id = keeper.id,
                 .rank = i});
    v1::AgentMessage fact;
    auto* started = fact.mutable_worker_started();
    started->set_generation(keeper.generation);
    started->set_rank(worker.rank);
    started->set_local_rank(i);
    started->set_pid(worker.pid);
    started->set_time_ns(now_ns_ + node.plan.clock_offset_ns);
    TellAgent(keeper, std::move(fact));
  }
  ArmKeeper(keeper);
}

void World::SetLease(SimKeeper& keeper, int64_t until_ns) {
  if (scenario_.sabotage == Sabotage::kKeepersIgnoreLeases) return;
  keeper.lease_until_ns = until_ns;
}

void World::CheckDeadlines(SimKeeper& keeper) {
  if (keeper.lease_until_ns != 0 && now_ns_ >= keeper.lease_until_ns) {
    if (tracing() && keeper.mode != v1::StopWorkers::KILL) {
      Say(nodes_[keeper.node].plan.name,
          absl::StrCat("keeper ", keeper.id, ": the lease of g", keeper.generation, " is over"));
    }
    return KillAll(keeper);
  }
  if (keeper.kill_at_ns != 0 && now_ns_ >= keeper.kill_at_ns) KillAll(keeper);
}

void World::ArmKeeper(SimKeeper& keeper) {
  int64_t next_ns = keeper.lease_until_ns;
  if (keeper.kill_at_ns != 0 && (next_ns == 0 || keeper.kill_at_ns < next_ns)) {
    next_ns = keeper.kill_at_ns;
  }
  if (next_ns == 0 || keeper.gone || (keeper.armed_ns != 0 && keeper.armed_ns <= next_ns)) return;
  keeper.armed_ns = std::max(next_ns, now_ns_);
  queue_.Push({.when_ns = keeper.armed_ns,
               .what = What::kKeeperTime,
               .node = keeper.node,
               .id = keeper.id,
               .number = static_cast<uint64_t>(keeper.armed_ns)});
}

void World::OrderKeeper(SimKeeper& keeper, v1::StopWorkers::Mode mode, int64_t grace_ns) {
  static constexpr int kHardness[] = {0, 2, 1, 3};  // unspecified, abort, stop, kill
  if (kHardness[mode] < kHardness[keeper.mode]) return;
  keeper.mode = mode;
  if (mode == v1::StopWorkers::KILL) return KillAll(keeper);
  const bool abort = mode == v1::StopWorkers::ABORT;
  for (SimWorker& worker : keeper.workers) {
    if (!worker.alive || worker.hung) continue;
    if (abort && worker.stage != Stage::kBooting) {
      EndSoon(keeper, worker, kExitOnAbort, random_.Between(0, kAbortNs));
    } else if (!random_.Chance(scenario_.work.ignores_term)) {
      EndSoon(keeper, worker, -kSigTerm, random_.Between(0, grace_ns));
    }
  }
  // Those that have said Hello get less; the rest of them the grace, which is never shorter.
  const bool all_hello =
      std::none_of(keeper.workers.begin(), keeper.workers.end(),
                   [](const SimWorker& w) { return w.alive && w.stage == Stage::kBooting; });
  const int64_t until_ns = now_ns_ + (abort && all_hello ? kAbortNs : grace_ns);
  if (keeper.kill_at_ns == 0 || until_ns < keeper.kill_at_ns) keeper.kill_at_ns = until_ns;
  ArmKeeper(keeper);
}

void World::KillAll(SimKeeper& keeper) {
  keeper.mode = v1::StopWorkers::KILL;
  for (SimWorker& worker : keeper.workers) {
    if (worker.alive) WorkerEnded(keeper, worker, 0, kSigKill);
  }
}

void World::StandStill(SimKeeper& keeper, SimWorker& worker) {
  const double seconds = scenario_.spec.supervision().hang_timeout_seconds();
  if (seconds <= 0) return;
  worker.hung_ns = now_ns_;
  stalled_ns_ = now_ns_ + static_cast<int64_t>(seconds * kSecondNs);
  stalled_generation_ = keeper.generation;
  if (scenario_.sabotage == Sabotage::kKeepersIgnoreStalls) return;
  queue_.Push({.when_ns = stalled_ns_,
               .what = What::kWorkerStalls,
               .node = keeper.node,
               .id = keeper.id,
               .rank = worker.rank - keeper.first_rank});
}

void World::TellStalled(SimKeeper& keeper, const SimWorker& worker) {
  v1::AgentMessage message;
  auto* stalled = message.mutable_worker_stalled();
  stalled->set_generation(keeper.generation);
  stalled->set_rank(worker.rank);
  stalled->set_seconds(static_cast<double>(now_ns_ - worker.hung_ns) / kSecondNs);
  TellAgent(keeper, std::move(message));
}

void World::TellPlaces(SimKeeper& keeper) {
  v1::AgentMessage message;
  message.mutable_workers_examined()->set_generation(keeper.generation);
  for (const SimWorker& worker : keeper.workers) {
    v1::WorkerPlace* place = message.mutable_workers_examined()->add_workers();
    place->set_rank(worker.rank);
    if (!worker.alive) continue;
    place->set_pid(worker.pid);
    place->set_speaks(true);
    place->set_step(worker.completed);
    const int64_t still_ns = worker.hung_ns == 0 ? 0 : now_ns_ - worker.hung_ns;
    place->set_seconds_still(static_cast<double>(still_ns) / kSecondNs);
  }
  TellAgent(keeper, std::move(message));
}

void World::KillKeeper(SimKeeper& keeper) {
  for (SimWorker& worker : keeper.workers) {
    if (worker.alive) RemoveLive(keeper, worker);
  }
  BreakGang(keeper);
  FinishKeeper(keeper, /*died=*/true);
}

void World::RemoveLive(SimKeeper& keeper, SimWorker& worker) {
  worker.alive = false;
  --keeper.alive;
  if (--live_[keeper.gang] == 0) --live_generations_;
}

void World::WorkerEnded(SimKeeper& keeper, SimWorker& worker, int32_t code, int32_t signal) {
  if (code < 0) {
    signal = -code;
    code = 0;
  }
  RemoveLive(keeper, worker);
  worker.ended_well = code == 0 && signal == 0;
  if (scenario_.sabotage == Sabotage::kKeepersHideFailures) code = signal = 0;
  v1::AgentMessage fact;
  auto* exited = fact.mutable_worker_exited();
  exited->set_generation(keeper.generation);
  exited->set_rank(worker.rank);
  exited->set_pid(worker.pid);
  exited->set_exit_code(code);
  exited->set_signal(signal);
  exited->set_time_ns(now_ns_ + nodes_[keeper.node].plan.clock_offset_ns);
  exited->set_step(worker.completed);
  exited->set_finished(code == 0 && signal == 0);
  TellAgent(keeper, std::move(fact));
  if (code != 0 || signal != 0) BreakGang(keeper);
  if (keeper.alive == 0) FinishKeeper(keeper, /*died=*/false);
}

void World::FinishKeeper(SimKeeper& keeper, bool died) {
  keeper.gone = true;
  if (tracing()) {
    Say(nodes_[keeper.node].plan.name,
        absl::StrCat("keeper ", keeper.id, " of g", keeper.generation,
                     died ? " died" : " is gone"));
  }
  PushToAgent(keeper, {.what = What::kKeeperGone, .rank = died ? 1U : 0U});
}

void World::TellAgent(SimKeeper& keeper, v1::AgentMessage fact) {
  SimNode& node = nodes_[keeper.node];
  if (!node.agent_alive || node.agent_number != keeper.agent) return;
  PushToAgent(keeper, {.what = What::kKeeperSaid, .slot = up_.Put(std::move(fact))});
}

void World::PushToAgent(SimKeeper& keeper, SimEvent event) {
  SimNode& node = nodes_[keeper.node];
  node.to_agent_ns = std::max(node.to_agent_ns, now_ns_ + random_.Between(5'000, kLocalMaxNs));
  event.when_ns = node.to_agent_ns;
  event.node = keeper.node;
  event.id = keeper.agent;
  event.number = keeper.generation;
  queue_.Push(event);
}

}  // namespace ddprun::sim
