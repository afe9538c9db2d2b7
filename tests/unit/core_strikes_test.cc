// Nodes that fail again and again, unhealthy nodes, and what cannot be killed (L7, L29, D8).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/coordinator/strikes.h"
#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Nodes a, b and c, of which two take part; two strikes, a cool-down of 100 s.
class Strikes : public testing::Test {
 protected:
  Strikes() {
    job_.spec.mutable_restart()->set_max_restarts(100);
    job_.spec.mutable_supervision()->set_node_strikes_limit(2);
    job_.spec.mutable_supervision()->set_node_cooldown_seconds(100);
  }
  void Start(bool spare) {
    job_.Submit();
    if (spare) job_.Join("c");
    job_.Join("a");
    job_.Join("b");
    job_.Choose();
  }
  std::vector<std::string> Members() const {
    std::vector<std::string> names;
    for (const Placement& placement : job_.state.generation.placements) {
      names.push_back(placement.node);
    }
    return names;
  }
  void FailOn(const std::string& node) {
    for (uint32_t rank = 0; rank < job_.state.generation.workers.size(); ++rank) {
      if (job_.NodeOf(rank) == node) return job_.FailGeneration(rank);
    }
    FAIL() << node << " takes no part";
  }
  void Next() {
    job_.Pass(70);
    if (job_.choosing) job_.Choose();
  }
  void SayUnhealthy(const std::string& node) {
    v1::AgentMessage message;
    message.mutable_node_unhealthy()->set_generation(job_.state.generation.number);
    message.mutable_node_unhealthy()->set_reason("nvidia-smi: exit code 9");
    job_.Say(node, message);
  }
  CoreHarness job_;
};

// L29: a host that fails twice is left out, a spare takes its place, and it comes back when it has
// cooled down.
TEST_F(Strikes, LeaveANodeOutUntilItHasCooledDown) {
  Start(/*spare=*/true);
  ASSERT_THAT(Members(), ElementsAre("c", "a"));
  FailOn("a");
  EXPECT_EQ(job_.Count("node_left_out"), 0);
  Next();
  ASSERT_THAT(Members(), ElementsAre("c", "a"));
  FailOn("a");
  EXPECT_EQ(job_.Event("node_left_out")["node"], "a");
  EXPECT_EQ(job_.Event("node_left_out")["seconds"], 100.0);
  Next();
  EXPECT_THAT(Members(), ElementsAre("c", "b"));
  EXPECT_EQ(job_.Count("node_let_in"), 0);
  job_.Pass(40);
  EXPECT_EQ(job_.Event("node_let_in")["node"], "a");
  // Where b is gone now, a is used again.
  job_.Detach("b");
  job_.PassSilently(5, {"b"});
  for (uint32_t rank = 0; rank < 2; ++rank) job_.Exit(rank, 1, 0, true);
  job_.StopNode("c");
  Next();
  EXPECT_THAT(Members(), ElementsAre("c", "a"));
}

// L29: each further time is twice as long, up to an hour.
TEST_F(Strikes, DoubleTheCooldownUpToAnHour) {
  Start(/*spare=*/true);
  double expected = 100;
  for (int round = 0; round < 8; ++round) {
    // Only the rule itself: two strikes in a row.
    job_.state.now_ns = job_.now_ns;
    EXPECT_EQ(Strike(job_.state, "a", false), StrikeResult::kCounted);
    ASSERT_EQ(Strike(job_.state, "a", false), StrikeResult::kLeftOut);
    const NodeStrikes& entry = job_.state.strikes.at("a");
    EXPECT_EQ(static_cast<double>(entry.out_until_ns - job_.now_ns) / kSecondNs, expected);
    job_.Pass(expected + 1);
    EXPECT_FALSE(entry.out);
    expected = std::min(2 * expected, 3600.0);
  }
}

// Without another node to take its place nothing is gained by leaving it out: it goes on.
TEST_F(Strikes, DoNotStopAJobThatNeedsTheNode) {
  Start(/*spare=*/false);
  for (int round = 0; round < 4; ++round) {
    FailOn("b");
    Next();
    EXPECT_EQ(job_.Count("node_left_out"), 0);
    ASSERT_THAT(Members(), ElementsAre("a", "b"));
    ASSERT_EQ(job_.state.phase, Phase::kRunning);
  }
  EXPECT_EQ(job_.Count("node_kept"), 2);  // each time at the limit of two
  EXPECT_EQ(job_.Event("node_kept")["node"], "b");
}

// A single node just goes on, and the events say so.
TEST(SingleNode, IsNeverLeftOut) {
  CoreHarness job(1);
  job.spec.mutable_supervision()->set_node_strikes_limit(1);
  job.spec.mutable_supervision()->set_node_cooldown_seconds(100);
  job.Start();
  job.FailGeneration();
  EXPECT_EQ(job.Count("node_left_out"), 0);
  EXPECT_THAT(std::string(job.Event("node_kept")["reason"]), HasSubstr("too few nodes"));
  EXPECT_TRUE(job.choosing);
}

// Failures on different nodes are not one node's; 0 strikes: never.
TEST_F(Strikes, CountForEachNodeAlone) {
  Start(/*spare=*/false);
  FailOn("a");
  Next();
  FailOn("b");
  EXPECT_EQ(job_.Count("node_left_out"), 0);
  job_.state.spec.mutable_supervision()->set_node_strikes_limit(0);
  Next();
  FailOn("b");
  EXPECT_EQ(job_.Count("node_left_out"), 0);
}

// A failed health check leaves the node out at once; no worker is blamed.
TEST_F(Strikes, OfAHealthCheckAreAllOfThem) {
  Start(/*spare=*/true);
  SayUnhealthy("a");
  EXPECT_EQ(job_.state.phase, Phase::kStopping);
  for (uint32_t rank = 0; rank < 2; ++rank) job_.Exit(rank, 1);  // c's ranks miss a's
  job_.StopAll();
  const FailureRecord& failure = job_.state.failures.back();
  EXPECT_EQ(failure.cause, Cause::kNodeUnhealthy);
  EXPECT_EQ(failure.rank, -1);
  EXPECT_EQ(failure.node, "a");
  EXPECT_THAT(failure.reason, HasSubstr("nvidia-smi"));
  EXPECT_EQ(job_.Event("node_left_out")["node"], "a");
  Next();
  EXPECT_THAT(Members(), ElementsAre("c", "b"));
}

// A job that ends by health checks says that it could not start.
TEST_F(Strikes, EndAJobWhoseNodesAreUnhealthyAsNotStarted) {
  job_.spec.mutable_restart()->set_max_restarts(0);
  Start(/*spare=*/false);
  SayUnhealthy("b");
  job_.StopAll();
  ASSERT_TRUE(job_.outcome);
  EXPECT_EQ(job_.outcome->failure_kind, "start_failed");
  EXPECT_EQ(job_.outcome->exit_code, 4);
}

void StopWithUnkillable(CoreHarness& job, const std::string& node) {
  v1::AgentMessage message;
  message.mutable_generation_stopped()->set_generation(job.state.generation.number);
  message.mutable_generation_stopped()->add_unkillable_pids(4242);
  job.Say(node, message);
}

// L7: on the only node the job ends, with the processes named.
TEST(Unkillable, EndsTheJobOnASingleNode) {
  CoreHarness job(1);
  job.Start();
  job.Exit(1, 0, 9);
  StopWithUnkillable(job, "a");
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->status, "failed");
  EXPECT_EQ(job.outcome->exit_code, 137);
  EXPECT_THAT(job.outcome->reason, HasSubstr("4242 on node a"));
  EXPECT_EQ(job.Event("worker_unkillable")["node"], "a");
}

// L7: where another node can take its place, the node is left out.
TEST_F(Strikes, LeaveANodeOutWhereProcessesCannotBeKilled) {
  Start(/*spare=*/true);
  job_.Exit(0, 0, 9);
  job_.StopNode("a");
  StopWithUnkillable(job_, "c");
  ASSERT_FALSE(job_.outcome);
  EXPECT_EQ(job_.Event("node_left_out")["node"], "c");
  Next();
  EXPECT_THAT(Members(), testing::UnorderedElementsAre("a", "b"));
}

}  // namespace
}  // namespace ddprun::coordinator
