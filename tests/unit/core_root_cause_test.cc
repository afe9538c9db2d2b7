// Which rank is named as the cause, and which ranks only died of it (root_cause.h; S6).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "launcher/coordinator/ranks.h"
#include "launcher/coordinator/root_cause.h"
#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;

// S6: rank 2 raises; 0, 1 and 3 abort with communication errors 20–300 ms around it.
TEST(RootCause, IsTheRankWithItsOwnErrorWhenItsPeersLostIt) {
  CoreHarness job;
  job.Start();
  const int64_t t = job.now_ns;
  job.Fail(0, v1::WorkerFailed::COMMUNICATION, t - 20 * kMs);
  job.Exit(0, 1, 0, false, t - 10 * kMs);
  job.Fail(2, v1::WorkerFailed::ERROR, t);
  job.Exit(2, 1, 0, false, t + 5 * kMs);
  job.Fail(1, v1::WorkerFailed::COMMUNICATION, t + 20 * kMs);
  job.Exit(1, 1, 0, false, t + 30 * kMs);
  job.Exit(3, 1, 0, true, t + 300 * kMs);
  job.StopAll();
  EXPECT_EQ(job.Event("generation_ended")["rank"], 2);
  EXPECT_THAT(std::string(job.Event("generation_ended")["reason"]), HasSubstr("it said so"));
  std::map<int, std::string> causes;
  for (const auto& event : job.events) {
    if (event["event"] == "worker_exited") causes[event["rank"]] = event["cause"];
  }
  EXPECT_EQ(causes[0], "secondary");
  EXPECT_EQ(causes[1], "secondary");
  EXPECT_EQ(causes[2], "failed");
  EXPECT_EQ(causes[3], "stopped");
}

// The earliest evidence wins, after the nodes' clocks are corrected.
TEST(RootCause, IsTheEarliestEndByCorrectedClocks) {
  Generation g;
  g.workers.resize(2);
  for (int rank = 0; rank < 2; ++rank) {
    g.workers[rank].node = rank == 0 ? "a" : "b";
    g.workers[rank].exited.emplace();
    g.workers[rank].exited->set_signal(9);
  }
  g.workers[0].exited->set_time_ns(1000);
  g.workers[1].exited->set_time_ns(2000);
  EXPECT_EQ(FindRootCause(g, {}).rank, 0);
  // b's clock goes ahead by 1500.
  EXPECT_EQ(FindRootCause(g, {{"b", -1500}}).rank, 1);
}

TEST(RootCause, IsNotAnEndThatWeOrdered) {
  CoreHarness job;
  job.Start();
  job.Exit(0, 1, 0, /*by_order=*/true, 10);
  job.Exit(3, 0, 11, false, 20);
  job.StopAll();
  EXPECT_EQ(job.Event("generation_ended")["rank"], 3);
  EXPECT_EQ(job.state.failures.back().signal, 11);
}

// A rank cannot write its part of the last checkpoint; another one is the first to fail for it.
class RefusedCheckpointCause : public testing::Test {
 protected:
  RefusedCheckpointCause() {
    job.spec.mutable_restart()->set_max_restarts(0);
    job.Start();
    job.ReadyAll();
    job.Checkpoint(0, 50, v1::CheckpointFact::STARTED);
    job.Checkpoint(2, 50, v1::CheckpointFact::FAILED);
  }
  void FailWith(uint32_t rank, const std::string& text) {
    v1::AgentMessage message;
    message.mutable_worker_failed()->set_generation(1);
    message.mutable_worker_failed()->set_rank(rank);
    message.mutable_worker_failed()->set_kind(v1::WorkerFailed::ERROR);
    message.mutable_worker_failed()->set_message(text);
    message.mutable_worker_failed()->set_time_ns(job.now_ns);
    job.Say(job.NodeOf(rank), message);
  }
  CoreHarness job;
};

TEST_F(RefusedCheckpointCause, IsTheRankThatCouldNotWriteItWhoeverSpeaksFirst) {
  FailWith(0, "the checkpoint at the end of the run was not saved: dropped: rank 2: no space");
  job.Exit(0, 3, 0, false, job.now_ns + kMs);
  FailWith(2, "the checkpoint at the end of the run was not saved: dropped: rank 2: no space");
  job.Exit(2, 143, 0, true, job.now_ns + 2 * kMs);
  job.Exit(1, 0, SIGTERM, true);
  job.Exit(3, 0, SIGTERM, true);
  job.StopAll();
  EXPECT_EQ(job.Event("generation_ended")["rank"], 2);
  EXPECT_EQ(job.Event("generation_ended")["cause"], "worker_error");
  EXPECT_EQ(job.Event("generation_ended")["reason"],
            "could not write its part of the checkpoint of step 50: no space");
  ASSERT_EQ(job.state.failures.size(), 1u);
  EXPECT_EQ(job.state.failures[0].node, "b");
  EXPECT_EQ(job.state.failures[0].secondary, std::vector<uint32_t>{0});
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->exit_code, 3);
}

// A program that makes no report: the end of its log tells.
TEST_F(RefusedCheckpointCause, IsReadInTheLogOfAProgramToo) {
  v1::AgentMessage message;
  auto* exited = message.mutable_worker_exited();
  exited->set_generation(1);
  exited->set_rank(1);
  exited->set_exit_code(5);
  exited->set_time_ns(job.now_ns);
  exited->add_log_tail("the checkpoint of step 50 was dropped: rank 2: no space");
  job.Say(job.NodeOf(1), message);
  for (uint32_t rank : {0, 2, 3}) job.Exit(rank, 0, SIGTERM, true);
  job.StopAll();
  EXPECT_EQ(job.Event("generation_ended")["rank"], 2);
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->exit_code, 5);
}

// A rank that fails of something else afterwards is its own cause.
TEST_F(RefusedCheckpointCause, IsNotBlamedForAnotherFailure) {
  FailWith(0, "out of data");
  job.Exit(0, 1);
  job.StopAll();
  EXPECT_EQ(job.Event("generation_ended")["rank"], 0);
}

TEST(RootCause, SaysSoWhenOnlyLostPeersAreKnown) {
  CoreHarness job;
  job.Start();
  job.Fail(1, v1::WorkerFailed::COMMUNICATION, 100);
  job.Exit(1, 1, 0, false, 110);
  job.Fail(0, v1::WorkerFailed::COMMUNICATION, 90);
  job.Exit(0, 1, 0, false, 120);
  job.Pass(1);
  job.StopAll();
  EXPECT_EQ(job.Event("generation_ended")["rank"], 0);
  EXPECT_THAT(std::string(job.Event("generation_ended")["reason"]),
              HasSubstr("none of them shows why"));
}

// R4: the node is blamed, not the ranks that only missed it.
TEST(RootCause, IsTheLostNodeWhenRanksOnlyMissedIt) {
  CoreHarness job;
  job.Start();
  job.Fail(0, v1::WorkerFailed::COMMUNICATION);
  job.PassSilently(4, {"b"});
  job.Exit(0, 1);
  job.Exit(1, 1, 0, true);
  job.StopNode("a");
  const FailureRecord& failure = job.state.failures.back();
  EXPECT_EQ(failure.cause, Cause::kNodeLost);
  EXPECT_EQ(failure.node, "b");
  EXPECT_THAT(failure.reason, HasSubstr("node b was lost"));
}

// R7, L48: a node keeps its ranks from generation to generation, whoever leaves.
TEST(Ranks, StayWhereTheyWere) {
  v1::JobSpec spec;
  spec.set_nodes_min(2);
  spec.set_nodes_max(3);
  std::map<std::string, Node> nodes;
  for (const char* name : {"x", "m", "a"}) {  // in the order in which they joined
    Node node;
    node.name = name;
    node.slots = 2;
    node.attached = true;
    node.join_order = nodes.size();
    nodes[name] = node;
  }
  auto names = [](const Assignment& assignment) {
    std::vector<std::string> all;
    for (const Placement& placement : assignment.placements) all.push_back(placement.node);
    return all;
  };
  Assignment first = AssignRanks(spec, nodes, {});
  EXPECT_THAT(names(first), testing::ElementsAre("x", "m", "a"));
  EXPECT_EQ(first.world_size, 6u);
  EXPECT_EQ(first.placements[2].first_rank, 4u);
  // It was away and joined again later: its place is kept.
  nodes["x"].join_order = 9;
  EXPECT_THAT(names(AssignRanks(spec, nodes, first.placements)),
              testing::ElementsAre("x", "m", "a"));
  // One is gone: a spare takes its place.
  nodes.erase("m");
  nodes["b"] = nodes["a"];
  nodes["b"].name = "b";
  EXPECT_THAT(names(AssignRanks(spec, nodes, first.placements)),
              testing::ElementsAre("x", "b", "a"));
  // A wish comes first.
  nodes["b"].node_rank_wanted = 0;
  EXPECT_THAT(names(AssignRanks(spec, nodes, first.placements)),
              testing::ElementsAre("b", "x", "a"));
  // R8: what is more than nodes_max stays a spare.
  spec.set_nodes_max(2);
  EXPECT_THAT(names(AssignRanks(spec, nodes, {})), testing::SizeIs(2));
  // Detached ones do not count.
  nodes["x"].attached = nodes["a"].attached = false;
  EXPECT_TRUE(AssignRanks(spec, nodes, {}).placements.empty());
}

}  // namespace
}  // namespace ddprun::coordinator
