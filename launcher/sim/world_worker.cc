// Workers, after proto/worker_protocol.md and libddprun: the exchange, steps, agreed edges and
// checkpoints of one rank.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/sim/world.h"

namespace ddprun::sim {
namespace {

constexpr int64_t kReportNs = kSecondNs;  // between two reports of progress
constexpr int64_t kExitMaxNs = 5 * kMillisecondNs;
constexpr char kGroup[] = "world";

}  // namespace

// Every rank publishes an address, and awaits rank 0's and its neighbour's.
void World::Boot(SimKeeper& keeper, SimWorker& worker) {
  if (worker.ends || worker.hung) return;
  const Gang& gang = gangs_[keeper.gang];
  worker.stage = Stage::kExchanging;
  v1::AgentMessage message;
  auto* publish = message.mutable_publish();
  publish->set_generation(keeper.generation);
  publish->set_rank(worker.rank);
  publish->set_group(kGroup);
  publish->set_name(absl::StrCat(worker.rank));
  publish->set_value(absl::StrCat("g", keeper.generation, ":", worker.rank));
  TellAgent(keeper, std::move(message));
  const uint32_t neighbour = (worker.rank + 1) % gang.world_size;
  for (uint32_t peer : {0U, neighbour}) {
    if (peer == worker.rank || (peer == 0 && neighbour == 0 && worker.values_missing > 0)) continue;
    v1::AgentMessage asked;
    auto* await = asked.mutable_await();
    await->set_generation(keeper.generation);
    await->set_rank(worker.rank);
    await->set_group(kGroup);
    await->set_name(absl::StrCat(peer));
    ++worker.values_missing;
    TellAgent(keeper, std::move(asked));
  }
  if (worker.values_missing == 0) ConnectGang(keeper, worker);
}

void World::Hear(SimKeeper& keeper, SimWorker& worker, const v1::CoordinatorMessage& message) {
  using M = v1::CoordinatorMessage;
  switch (message.message_case()) {
    case M::kValue:
      // The bytes name the generation that published them.
      checker_.WorkerReads(message.value(), keeper.generation);
      if (worker.stage != Stage::kExchanging || worker.values_missing == 0) return;
      --worker.values_missing;
      if (worker.values_missing == 0 && !worker.hung) ConnectGang(keeper, worker);
      return;
    case M::kExchangeRefused:
      if (!worker.hung) {
        FailAndEnd(keeper, worker, v1::WorkerFailed::COMMUNICATION, "the exchange refused");
      }
      return;
    case M::kEdgeRequest:
      return HearEdge(keeper, worker, message.edge_request());
    case M::kCheckpointAt:
      return HearAgreed(keeper, worker, message.checkpoint_at());
    case M::kCheckpointSettled:
      return HearSettled(keeper, worker, message.checkpoint_settled());
    default:
      return;
  }
}

// The library's thread answers, also while the training thread hangs.
void World::HearEdge(SimKeeper& keeper, SimWorker& worker, const v1::EdgeRequest& request) {
  if (scenario_.sabotage == Sabotage::kWorkersIgnoreEdges) return;
  const bool still = worker.stage == Stage::kEdge || worker.stage == Stage::kDone ||
                     worker.ending || worker.completed >= scenario_.work.total_steps;
  auto found = std::find_if(worker.requests.begin(), worker.requests.end(),
                            [&](const EdgeRequest& r) { return r.id == request.id(); });
  if (found == worker.requests.end()) {
    worker.requests.push_back(
        {request.id(), worker.completed + (still ? 0 : 1), 0, false, request.stop()});
    found = worker.requests.end() - 1;
  }
  v1::AgentMessage message;
  auto* edge = message.mutable_edge_reached();
  edge->set_generation(keeper.generation);
  edge->set_rank(worker.rank);
  edge->set_id(request.id());
  edge->set_step(found->edge);
  TellAgent(keeper, std::move(message));
}

void World::HearAgreed(SimKeeper& keeper, SimWorker& worker, const v1::CheckpointAt& at) {
  auto found = std::find_if(worker.requests.begin(), worker.requests.end(),
                            [&](const EdgeRequest& r) { return r.id == at.id(); });
  if (found == worker.requests.end()) return;
  // At its last step it begins that checkpoint by itself.
  const bool begins = worker.last_begun == at.step() ||
                      (worker.completed == at.step() &&
                       (worker.stage == Stage::kEdge || worker.stage == Stage::kBegin));
  if (worker.stage == Stage::kDone || at.step() < worker.completed ||
      worker.completed >= scenario_.work.total_steps) {
    worker.requests.erase(found);
    if (!begins) SendCheckpointFact(keeper, worker, at.step(), v1::CheckpointFact::FAILED);
  } else {
    found->agreed = true;
    found->target = at.step();
    found->stop = at.stop();
  }
  Proceed(keeper, worker);
}

void World::HearSettled(SimKeeper& keeper, SimWorker& worker,
                        const v1::CheckpointSettled& settled) {
  // Nothing can be committed that this rank has not reported.
  if (settled.committed() && !worker.reported) return;
  if (!settled.committed()) worker.dropped.push_back(settled.step());
  if (worker.in_flight == settled.step()) worker.in_flight = 0;
  Proceed(keeper, worker);
}

// Lets the training thread run until it has to wait for something.
void World::Proceed(SimKeeper& keeper, SimWorker& worker) {
  if (!worker.alive || worker.ends || worker.hung) return;
  while (true) {
    switch (worker.stage) {
      case Stage::kEdge:
        if (!AtEdge(keeper, worker)) return;
        continue;
      case Stage::kBegin:
        if (worker.in_flight != 0) return;
        BeginCheckpoint(keeper, worker);
        worker.stage = worker.ending ? Stage::kSettle : Stage::kNext;
        continue;
      case Stage::kSettle:
        if (worker.in_flight != 0) return;
        worker.stage = Stage::kDone;
        EndSoon(keeper, worker, 0, random_.Between(0, kExitMaxNs));
        return;
      case Stage::kNext:
        EnterStep(keeper, worker);
        return;
      case Stage::kBooting:
      case Stage::kExchanging:
      case Stage::kConnecting:
      case Stage::kConnected:
      case Stage::kStepping:
      case Stage::kDone:
        return;
    }
  }
}

// False while this rank has to wait at its edge for the agreed step.
bool World::AtEdge(SimKeeper& keeper, SimWorker& worker) {
  const WorkPlan& work = scenario_.work;
  const bool last = worker.completed >= work.total_steps;
  bool write = false;
  if (!last) {
    for (const EdgeRequest& r : worker.requests) {
      if (!r.agreed && r.edge <= worker.completed) return false;
    }
    for (const EdgeRequest& r : worker.requests) {
      if (!r.agreed || r.target != worker.completed) continue;
      write = true;
      worker.ending = worker.ending || r.stop;
    }
    std::erase_if(worker.requests,
                  [&](const EdgeRequest& r) { return r.agreed && r.target <= worker.completed; });
  }
  const Gang& gang = gangs_[keeper.gang];
  const bool began_here = worker.completed == gang.resume_step;
  if (!began_here && worker.completed % work.checkpoint_every == 0) {
    if (gang.skipped_step == worker.completed && !last) {
      if (worker.rank == 0) {
        SendCheckpointFact(keeper, worker, worker.completed, v1::CheckpointFact::SKIPPED);
      }
    } else {
      write = true;
    }
  }
  if (last) {
    worker.ending = true;
    write = !began_here || work.last_checkpoint_again;
  }
  if (write && worker.last_begun != worker.completed) {
    worker.stage = Stage::kBegin;
  } else {
    worker.stage = worker.ending ? Stage::kSettle : Stage::kNext;
  }
  return true;
}

void World::BeginCheckpoint(SimKeeper& keeper, SimWorker& worker) {
  const uint64_t step = worker.completed;
  worker.last_begun = step;
  const bool dropped =
      std::find(worker.dropped.begin(), worker.dropped.end(), step) != worker.dropped.end();
  if (dropped) return;
  worker.in_flight = step;
  worker.reported = false;
  SendCheckpointFact(keeper, worker, step, v1::CheckpointFact::STARTED);
  queue_.Push({.when_ns = now_ns_ + random_.Between(0, scenario_.work.write_ns),
               .what = What::kShardDone,
               .node = keeper.node,
               .id = keeper.id,
               .rank = worker.rank - keeper.first_rank,
               .number = step});
}

void World::ShardDone(SimKeeper& keeper, SimWorker& worker, uint64_t step) {
  if (worker.ends || worker.in_flight != step) return;
  if (shard_fails_) {
    shard_fails_ = false;
    return SendCheckpointFact(keeper, worker, step, v1::CheckpointFact::FAILED);
  }
  worker.reported = true;
  disk_.WriteShard(keeper.generation, step, worker.rank, gangs_[keeper.gang].world_size);
  SendCheckpointFact(keeper, worker, step, v1::CheckpointFact::WRITTEN);
}

void World::SendCheckpointFact(SimKeeper& keeper, SimWorker& worker, uint64_t step,
                               v1::CheckpointFact::What what) {
  v1::AgentMessage message;
  auto* fact = message.mutable_checkpoint();
  fact->set_generation(keeper.generation);
  fact->set_rank(worker.rank);
  fact->set_step(step);
  fact->set_what(what);
  if (what == v1::CheckpointFact::FAILED) fact->set_reason("no space left on device");
  if (what == v1::CheckpointFact::WRITTEN) fact->add_files()->set_name(absl::StrCat(worker.rank));
  TellAgent(keeper, std::move(message));
}

// The agent passes on what the first rank of its node says, at most once a second.
void World::Report(SimKeeper& keeper, SimWorker& worker) {
  if (worker.rank != keeper.first_rank || now_ns_ < worker.next_report_ns) return;
  worker.next_report_ns = now_ns_ + kReportNs;
  v1::AgentMessage message;
  auto* progress = message.mutable_worker_progressed();
  progress->set_generation(keeper.generation);
  progress->set_rank(worker.rank);
  progress->set_step(worker.completed);
  TellAgent(keeper, std::move(message));
}

void World::FailAndEnd(SimKeeper& keeper, SimWorker& worker, v1::WorkerFailed::Kind kind,
                       const char* text) {
  v1::AgentMessage message;
  auto* failed = message.mutable_worker_failed();
  failed->set_generation(keeper.generation);
  failed->set_rank(worker.rank);
  failed->set_kind(kind);
  failed->set_message(text);
  failed->set_time_ns(now_ns_ + nodes_[keeper.node].plan.clock_offset_ns);
  TellAgent(keeper, std::move(message));
  EndSoon(keeper, worker, 1, random_.Between(0, kExitMaxNs));
}

// A negative code stands for a signal.
void World::EndSoon(SimKeeper& keeper, SimWorker& worker, int32_t code, int64_t after_ns) {
  if (worker.ends && worker.stage == Stage::kDone) return;
  worker.ends = true;
  queue_.Push({.when_ns = now_ns_ + after_ns,
               .what = What::kWorkerEnds,
               .node = keeper.node,
               .id = keeper.id,
               .rank = worker.rank - keeper.first_rank,
               .number = static_cast<uint64_t>(static_cast<int64_t>(code))});
}

}  // namespace ddprun::sim
