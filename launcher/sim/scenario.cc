#include "launcher/sim/scenario.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "launcher/sim/random.h"

namespace ddprun::sim {
namespace {

constexpr uint32_t kNodesMin = 8;
constexpr uint32_t kNodesMax = 16;
constexpr double kSingleNodeShare = 0.1;
constexpr uint64_t kFirstFaultEvent = 5;
constexpr uint64_t kLastFaultEvent = 1600;  // most jobs have this many events

struct Weight {
  FaultKind kind;
  uint32_t weight;
  bool single_node;  // can happen on a single node
};
constexpr Weight kWeights[] = {
    {FaultKind::kWorkerKilled, 20, true},     {FaultKind::kTwoWorkersKilled, 8, true},
    {FaultKind::kWorkerError, 8, true},       {FaultKind::kWorkerExits, 6, true},
    {FaultKind::kWorkerConfig, 1, true},      {FaultKind::kWorkerHangs, 5, true},
    {FaultKind::kWorkerMistaken, 3, true},    {FaultKind::kWorkerCollides, 5, true},
    {FaultKind::kNodePaused, 16, true},       {FaultKind::kAgentPaused, 10, false},
    {FaultKind::kNodeDies, 8, false},         {FaultKind::kAgentKilled, 8, false},
    {FaultKind::kAgentLeaves, 9, false},      {FaultKind::kKeeperKilled, 6, true},
    {FaultKind::kAgentLeavesTwice, 4, false}, {FaultKind::kAgentLeavesNow, 4, false},
    {FaultKind::kStreamBreaks, 14, false},    {FaultKind::kPartition, 16, false},
    {FaultKind::kShardFails, 8, true},        {FaultKind::kCommitFails, 6, true},
    {FaultKind::kNewestCorrupt, 6, true},     {FaultKind::kCoordinatorPaused, 6, true},
    {FaultKind::kSpawnFails, 1, true},        {FaultKind::kCoordinatorKilled, 6, false},
};

constexpr FaultKind kMembershipFaults[] = {FaultKind::kAgentLeaves,      FaultKind::kAgentLeaves,
                                           FaultKind::kAgentLeavesTwice, FaultKind::kAgentLeavesNow,
                                           FaultKind::kAgentKilled,      FaultKind::kNodeDies,
                                           FaultKind::kNodePaused};

FaultKind DrawFault(Random& random, bool single_node) {
  uint32_t total = 0;
  for (const Weight& entry : kWeights) {
    if (!single_node || entry.single_node) total += entry.weight;
  }
  uint64_t left = random.Below(total);
  for (const Weight& entry : kWeights) {
    if (single_node && !entry.single_node) continue;
    if (left < entry.weight) return entry.kind;
    left -= entry.weight;
  }
  return FaultKind::kWorkerKilled;
}

void DrawMembershipFaults(Random& random, Scenario& scenario) {
  const int64_t count = random.Between(4, 16);
  for (int64_t i = 0; i < count; ++i) {
    scenario.faults.push_back(
        {kMembershipFaults[random.Below(std::size(kMembershipFaults))],
         static_cast<uint64_t>(random.Between(kFirstFaultEvent, 2 * kLastFaultEvent))});
  }
  std::stable_sort(scenario.faults.begin(), scenario.faults.end(),
                   [](const FaultPlan& a, const FaultPlan& b) { return a.at_event < b.at_event; });
}

void DrawFaults(Random& random, Scenario& scenario) {
  const int64_t count = random.Between(3, 8);
  for (int64_t i = 0; i < count; ++i) {
    scenario.faults.push_back(
        {DrawFault(random, scenario.single_node),
         static_cast<uint64_t>(random.Between(kFirstFaultEvent, kLastFaultEvent))});
  }
  auto control = [&](FaultKind kind, double chance) {
    if (!random.Chance(chance)) return;
    scenario.faults.push_back(
        {kind, static_cast<uint64_t>(random.Between(kFirstFaultEvent, 2 * kLastFaultEvent))});
  };
  for (int i = 0; i < 3; ++i) control(FaultKind::kAskCheckpoint, 0.5);
  control(FaultKind::kAskStop, 0.3);
  control(FaultKind::kAskStop, 0.05);
  control(FaultKind::kAskKill, 0.1);
  std::stable_sort(scenario.faults.begin(), scenario.faults.end(),
                   [](const FaultPlan& a, const FaultPlan& b) { return a.at_event < b.at_event; });
}

void DrawNodes(Random& random, Scenario& scenario) {
  v1::JobSpec& spec = scenario.spec;
  const auto count =
      scenario.single_node ? 1 : static_cast<uint32_t>(random.Between(kNodesMin, kNodesMax));
  const bool wishes = random.Chance(0.2);
  std::vector<int32_t> ranks(count);  // each is wished once at most
  std::iota(ranks.begin(), ranks.end(), 0);
  for (uint32_t i = count; i > 1; --i) std::swap(ranks[i - 1], ranks[random.Below(i)]);
  for (uint32_t i = 0; i < count; ++i) {
    NodePlan node;
    node.name = absl::StrCat("n", i);
    node.slots = static_cast<uint32_t>(
        scenario.single_node ? random.Between(2, 8) : 1 + random.Below(random.Chance(0.3) ? 4 : 2));
    if (wishes && random.Chance(0.5)) node.rank_wanted = ranks[i];
    // Most are there from the start; a few come late.
    node.joins_ns = random.Between(0, 300 * kMillisecondNs);
    if (random.Chance(0.1)) node.joins_ns = random.Between(0, 20 * kSecondNs);
    if (scenario.single_node) node.joins_ns = 0;
    node.clock_offset_ns = random.Between(-2 * kSecondNs, 2 * kSecondNs);
    scenario.nodes.push_back(std::move(node));
  }
  // Some of them spares; a job that wants a fixed number of nodes is the commonest.
  const auto most =
      static_cast<uint32_t>(scenario.single_node ? 1 : random.Between(count - count / 4, count));
  const bool elastic = !scenario.single_node && random.Chance(0.5);
  spec.set_nodes_max(most);
  spec.set_nodes_min(elastic ? static_cast<uint32_t>(random.Between(most / 2, most)) : most);
  for (NodePlan& node : scenario.nodes) {
    if (node.rank_wanted >= static_cast<int32_t>(most)) node.rank_wanted = -1;
  }
  spec.mutable_membership()->set_wait_for_replacement(random.Chance(0.3));
  spec.mutable_membership()->set_keep_size(random.Chance(0.2));
  spec.set_processes_per_node(random.Chance(0.3) ? static_cast<uint32_t>(1 + random.Below(2)) : 0);
}

void DrawSpec(Random& random, Scenario& scenario) {
  v1::JobSpec& spec = scenario.spec;
  spec.set_job_id("j");
  spec.set_train_config_json("{}");
  spec.set_grace_seconds(static_cast<double>(random.Between(2, 6)));
  spec.set_lease_seconds(scenario.single_node ? 0 : 3);
  spec.set_join_timeout_seconds(static_cast<double>(random.Between(4, 30)));
  spec.set_checkpoints_kept(static_cast<uint32_t>(random.Below(4)));
  v1::RestartPolicy& restart = *spec.mutable_restart();
  restart.set_max_restarts(static_cast<uint32_t>(random.Between(0, 10)));
  restart.set_max_restarts_given(random.Chance(0.7));
  restart.set_min_uptime_seconds(30);
  restart.set_start_failures_limit(3);
  restart.set_no_progress_limit(static_cast<uint32_t>(random.Between(3, 6)));
  restart.set_free_restarts_limit(100);
  restart.set_backoff_base_seconds(1);
  restart.set_backoff_max_seconds(8);
  if (random.Chance(0.3)) restart.set_window_seconds(static_cast<double>(random.Between(5, 40)));
  if (random.Chance(0.3)) restart.add_no_restart_on(kCodeOfExit);
  if (random.Chance(0.05)) {
    spec.set_time_limit_seconds(static_cast<double>(random.Between(5, 60)));
  }
  spec.mutable_supervision()->set_node_strikes_limit(
      static_cast<uint32_t>(random.Chance(0.5) ? 0 : random.Between(2, 3)));
  spec.mutable_supervision()->set_node_cooldown_seconds(static_cast<double>(random.Between(1, 3)));
}

}  // namespace

const char* FaultName(FaultKind kind) {
  switch (kind) {
    case FaultKind::kWorkerKilled:
      return "a worker is killed";
    case FaultKind::kTwoWorkersKilled:
      return "two workers are killed";
    case FaultKind::kWorkerError:
      return "a worker reports an error and ends";
    case FaultKind::kWorkerExits:
      return "a worker ends with a code and says nothing";
    case FaultKind::kWorkerConfig:
      return "a worker reports a configuration error";
    case FaultKind::kWorkerHangs:
      return "a worker hangs";
    case FaultKind::kWorkerMistaken:
      return "a worker believes that a peer is gone";
    case FaultKind::kWorkerCollides:
      return "a worker's port was taken by another program";
    case FaultKind::kNodePaused:
      return "a node is paused";
    case FaultKind::kAgentPaused:
      return "an agent is paused";
    case FaultKind::kNodeDies:
      return "a node dies";
    case FaultKind::kAgentKilled:
      return "an agent is killed";
    case FaultKind::kAgentLeaves:
      return "an agent leaves";
    case FaultKind::kAgentLeavesTwice:
      return "an agent leaves, and is asked again";
    case FaultKind::kAgentLeavesNow:
      return "an agent leaves at once";
    case FaultKind::kKeeperKilled:
      return "a keeper is killed";
    case FaultKind::kStreamBreaks:
      return "a stream breaks";
    case FaultKind::kPartition:
      return "a node is cut off";
    case FaultKind::kShardFails:
      return "a rank cannot write its shard";
    case FaultKind::kCommitFails:
      return "the next commit fails";
    case FaultKind::kNewestCorrupt:
      return "the newest checkpoint is damaged";
    case FaultKind::kCoordinatorPaused:
      return "the coordinator is paused";
    case FaultKind::kSpawnFails:
      return "the next keeper of a node cannot be started";
    case FaultKind::kCoordinatorKilled:
      return "the coordinator is killed";
    case FaultKind::kAskCheckpoint:
      return "a checkpoint is asked for";
    case FaultKind::kAskStop:
      return "a stop is asked for";
    case FaultKind::kAskKill:
      return "a kill is asked for";
  }
  return "?";
}

bool IsControl(FaultKind kind) {
  return kind == FaultKind::kAskCheckpoint || kind == FaultKind::kAskStop ||
         kind == FaultKind::kAskKill;
}

Scenario MakeScenario(uint64_t seed, uint64_t part, const ScenarioOptions& options) {
  // Whether a seed has one node is drawn alone, so that all its parts agree.
  Random of_seed(seed * 0x2545F4914F6CDD1DULL + 1);
  Scenario scenario;
  scenario.seed = seed;
  scenario.part = part;
  scenario.single_node = of_seed.Chance(kSingleNodeShare) && !options.only_membership;
  scenario.random_seed = of_seed.Next() + part * 0xD1342543DE82EF95ULL;
  Random random(scenario.random_seed);
  scenario.random_seed = random.Next();
  DrawSpec(random, scenario);
  DrawNodes(random, scenario);
  NetworkPlan& network = scenario.network;
  network.delay_min_ns = scenario.single_node ? 20'000 : 200'000;
  network.delay_max_ns = network.delay_min_ns;
  if (!scenario.single_node) {
    network.delay_max_ns = random.Between(kMillisecondNs, 80 * kMillisecondNs);
    network.loss = random.Chance(0.3) ? 0 : 0.04 * static_cast<double>(random.Below(100)) / 100;
    network.duplicate = random.Chance(0.3) ? 0 : 0.03;
    network.straggler = random.Chance(0.3) ? 0 : 0.02;
  }
  WorkPlan& work = scenario.work;
  work.total_steps = static_cast<uint64_t>(random.Between(15, 60));
  work.step_ns = random.Between(100 * kMillisecondNs, 700 * kMillisecondNs);
  work.checkpoint_every = static_cast<uint64_t>(random.Between(3, 12));
  work.write_ns = random.Between(20 * kMillisecondNs, 3 * work.step_ns);
  work.peers_hang = random.Chance(0.5) ? 0.3 : 0;
  work.ignores_term = random.Chance(0.5) ? 0.2 : 0;
  work.last_checkpoint_again = random.Chance(0.5);
  if (options.faults && options.only_membership) DrawMembershipFaults(random, scenario);
  if (options.faults && !options.only_membership) DrawFaults(random, scenario);
  // Workers whose collectives have no deadline, so that only the launcher ends a hang.
  if (options.faults && random.Chance(0.5)) {
    scenario.spec.mutable_supervision()->set_hang_timeout_seconds(
        static_cast<double>(random.Between(2, 8)));
  }
  if (!options.faults) network.loss = network.duplicate = network.straggler = 0;
  return scenario;
}

}  // namespace ddprun::sim
