// An agent's shell: feeds its core and performs what it decides.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/sim/world.h"

namespace ddprun::sim {
namespace {

// A person or a service manager starts an agent again that has ended too early.
constexpr int64_t kRestartMinNs = kSecondNs;
constexpr int64_t kRestartMaxNs = 3 * kSecondNs;
constexpr int64_t kExaminationMaxNs = 10 * kSecondNs;
constexpr double kSilentExaminations = 0.02;
constexpr int64_t kLocalMaxNs = 300'000;  // between processes of one node

// The rank that a message is for; −1: all of the node.
int64_t RankOf(const v1::CoordinatorMessage& message) {
  if (message.has_value()) return message.value().rank();
  if (message.has_exchange_refused()) return message.exchange_refused().rank();
  return -1;
}

}  // namespace

void World::StartAgent(uint32_t index) {
  SimNode& node = nodes_[index];
  node.agent_alive = true;
  ++node.agent_number;
  node.incarnation = absl::StrCat("i", node.agent_number);
  node.agent = agent::State();
  node.agent.identity = {"",
                         node.plan.name,
                         "boot",
                         node.incarnation,
                         node.plan.name,
                         "sim",
                         node.plan.slots,
                         node.plan.rank_wanted};
  node.agent_armed_ns = 0;
  node.server_streams.resize(node.agent_number + 1);
  node.keeper = 0;
  Connect(node);
}

void World::StepAgent(SimNode& node, const agent::Event& event) {
  for (agent::Effect& effect : agent::Step(node.agent, event, now_ns_)) {
    std::visit([&](auto& e) { Do(node, e); }, effect);
  }
  ArmAgent(node);
}

void World::ArmAgent(SimNode& node) {
  if (!node.agent_alive) return;
  const int64_t next_ns = agent::NextDeadlineNs(node.agent);
  if (next_ns == 0 || (node.agent_armed_ns != 0 && node.agent_armed_ns <= next_ns)) return;
  node.agent_armed_ns = std::max(next_ns, now_ns_);
  queue_.Push({.when_ns = node.agent_armed_ns,
               .what = What::kAgentTime,
               .node = static_cast<uint32_t>(&node - nodes_.data()),
               .id = node.agent_number,
               .number = static_cast<uint64_t>(node.agent_armed_ns)});
}

void World::AgentTime(SimNode& node, const SimEvent& event) {
  if (!node.agent_alive || node.agent_number != event.id ||
      node.agent_armed_ns != static_cast<int64_t>(event.number)) {
    return;
  }
  node.agent_armed_ns = 0;
  const int64_t next_ns = agent::NextDeadlineNs(node.agent);
  if (next_ns == 0 || next_ns > now_ns_) return ArmAgent(node);
  StepAgent(node, agent::TimePassed{});
  const int64_t after_ns = agent::NextDeadlineNs(node.agent);
  if (after_ns != 0 && after_ns <= now_ns_) {
    checker_.Violate("I10", absl::StrCat("the agent of ", node.plan.name, " waits for ",
                                         after_ns / 1e9, " s, which is over"));
  }
}

void World::Do(SimNode& node, agent::SendUp& effect) {
  if (effect.message.has_heartbeat()) {
    effect.message.mutable_heartbeat()->set_sent_ns(now_ns_ + node.plan.clock_offset_ns);
  }
  SendUpstream(node, std::move(effect.message));
}

void World::Do(SimNode& node, agent::SpawnKeeper& effect) {
  node.stop_ordered_ns = 0;
  if (!node.spawn_fails) return SpawnKeeper(node, effect);
  node.spawn_fails = false;
  const auto index = static_cast<uint32_t>(&node - nodes_.data());
  v1::AgentMessage fact;
  auto* failed = fact.mutable_worker_failed();
  failed->set_generation(effect.order.generation());
  failed->set_rank(effect.order.first_rank());
  failed->set_kind(v1::WorkerFailed::START);
  failed->set_message("cannot be started");
  failed->set_time_ns(1);
  const uint64_t generation = effect.order.generation();
  queue_.Push({.when_ns = now_ns_,
               .what = What::kKeeperSaid,
               .node = index,
               .id = node.agent_number,
               .slot = up_.Put(std::move(fact)),
               .number = generation});
  queue_.Push({.when_ns = now_ns_,
               .what = What::kKeeperGone,
               .node = index,
               .id = node.agent_number,
               .rank = 0,
               .number = generation});
}

void World::Do(SimNode& node, agent::OrderKeeper& effect) {
  if (node.keeper == 0 || Keeper(node.keeper).generation != effect.order.generation()) return;
  if (node.stop_ordered_ns == 0) node.stop_ordered_ns = now_ns_;
  const double grace = effect.order.grace_seconds() > 0 ? effect.order.grace_seconds()
                                                        : scenario_.spec.grace_seconds();
  PushToKeeper(node, {.what = What::kStopOrder,
                      .rank = static_cast<uint32_t>(effect.order.mode()),
                      .number = static_cast<uint64_t>(grace * kSecondNs)});
}

void World::Do(SimNode& node, agent::TellWorker& effect) {
  if (node.keeper == 0) return;
  const SimKeeper& keeper = Keeper(node.keeper);
  const int64_t rank = RankOf(effect.message);
  for (uint32_t i = 0; i < keeper.workers.size(); ++i) {
    if (rank >= 0 && keeper.workers[i].rank != rank) continue;
    PushToKeeper(node, {.what = What::kTell, .rank = i, .slot = down_.Put(effect.message)});
  }
}

void World::Do(SimNode&, agent::SignalWorkers&) {}

// Some nodes do not answer in time: their tools hang.
void World::Do(SimNode& node, agent::ExamineWorkers& effect) {
  if (node.keeper == 0 || Keeper(node.keeper).generation != effect.generation) return;
  if (random_.Chance(kSilentExaminations)) return;
  queue_.Push({.when_ns = now_ns_ + random_.Between(0, kExaminationMaxNs),
               .what = What::kExamined,
               .node = Keeper(node.keeper).node,
               .id = node.keeper});
}

void World::Do(SimNode& node, agent::RenewLease& effect) {
  if (node.keeper == 0) return;
  PushToKeeper(node, {.what = What::kLease, .number = static_cast<uint64_t>(effect.until_ns)});
}

void World::Do(SimNode& node, agent::Reconnect& effect) {
  queue_.Push({.when_ns = std::max(effect.not_before_ns, now_ns_),
               .what = What::kConnects,
               .node = static_cast<uint32_t>(&node - nodes_.data()),
               .id = node.agent_number});
}

void World::Do(SimNode& node, agent::End& effect) {
  if (tracing()) Say(node.plan.name, absl::StrCat("agent ends: ", effect.reason));
  EndAgent(node);
  if (finished_) return;
  queue_.Push({.when_ns = now_ns_ + random_.Between(kRestartMinNs, kRestartMaxNs),
               .what = What::kAgentStarts,
               .node = static_cast<uint32_t>(&node - nodes_.data())});
}

void World::EndAgent(SimNode& node) {
  if (!node.agent_alive) return;
  node.agent_alive = false;
  node.agent_paused_until_ns = 0;
  if (node.stream != 0) BreakStream(node.stream, 0, Delay() + scenario_.network.delay_max_ns);
  node.stream = 0;
  if (node.keeper != 0) PushToKeeper(node, {.what = What::kAgentGone});
  node.keeper = 0;
}

void World::KeeperSaid(SimNode& node, const SimEvent& event) {
  agent::KeeperSaid said{event.number, up_.Take(event.slot)};
  if (!node.agent_alive || node.agent_number != event.id) return;
  // Which ends were ordered is the agent's note, by the time of the end.
  if (said.fact.has_worker_exited()) {
    auto* exited = said.fact.mutable_worker_exited();
    exited->set_stopped_by_us(node.stop_ordered_ns != 0 &&
                              exited->time_ns() >=
                                  node.stop_ordered_ns + node.plan.clock_offset_ns);
    // … or its keeper's, whose lease was over.
    const SimKeeper& keeper = Keeper(node.keeper);
    if (node.keeper != 0 && keeper.lease_until_ns != 0 &&
        exited->time_ns() >= keeper.lease_until_ns + node.plan.clock_offset_ns) {
      exited->set_stopped_by_us(true);
    }
  }
  StepAgent(node, said);
}

void World::KeeperGone(SimNode& node, const SimEvent& event) {
  if (!node.agent_alive || node.agent_number != event.id) return;
  if (node.keeper != 0 && Keeper(node.keeper).generation == event.number) node.keeper = 0;
  const bool died = event.rank != 0;
  StepAgent(node, agent::KeeperGone{
                      event.number, died, died ? "its keeper died" : "all its workers ended", {}});
}

void World::PushToKeeper(SimNode& node, SimEvent event) {
  node.to_keeper_ns = std::max(node.to_keeper_ns, now_ns_ + random_.Between(5'000, kLocalMaxNs));
  event.when_ns = node.to_keeper_ns;
  event.node = static_cast<uint32_t>(&node - nodes_.data());
  event.id = node.keeper;
  queue_.Push(event);
}

}  // namespace ddprun::sim
