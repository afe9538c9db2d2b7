// Nodes whose address the others cannot reach: who has to go, and what it costs (L47, L58).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The given nodes run, the first with rank 0; `most` nodes are wished, two needed.
class Unreachable : public testing::Test {
 protected:
  void Start(const std::vector<std::string>& names, uint32_t most) {
    job_.spec.set_nodes_max(most);
    job_.spec.mutable_supervision()->set_node_strikes_limit(3);
    job_.spec.mutable_supervision()->set_node_cooldown_seconds(300);
    job_.Submit();
    for (const std::string& name : names) job_.Join(name);
    job_.Pass(4);
    job_.Choose();
    ASSERT_EQ(job_.Members(), names);
  }
  // It has tried in vain, and starts nothing. A node's address is its name here.
  void Accuse(const std::string& node, const std::string& address) {
    v1::AgentMessage message;
    message.mutable_node_unhealthy()->set_generation(job_.state.generation.number);
    message.mutable_node_unhealthy()->set_reason("cannot reach " + address);
    message.mutable_node_unhealthy()->set_unreachable_address(address);
    job_.Say(node, message);
    job_.StopNode(node);
  }
  void StartWorkersOf(const std::string& node) {
    for (uint32_t rank = 0; rank < job_.state.generation.workers.size(); ++rank) {
      if (job_.NodeOf(rank) != node) continue;
      v1::AgentMessage message;
      message.mutable_worker_started()->set_generation(job_.state.generation.number);
      message.mutable_worker_started()->set_rank(rank);
      job_.Say(node, message);
    }
  }
  // Sent away for good, named in both events, and nobody is charged.
  void ExpectSentAway(const std::string& node, const std::string& reporter) {
    const v1::Refusal refusal = job_.RefusalOf(node);
    EXPECT_EQ(refusal.kind(), v1::Refusal::ADDRESS);
    EXPECT_EQ(refusal.exit_code(), 2);
    EXPECT_EQ(refusal.retry_seconds(), 0);
    for (const std::string& part : {"address " + node, "node " + reporter,
                                    std::string("--advertise-addr"), std::string("--iface")}) {
      EXPECT_THAT(refusal.reason(), HasSubstr(part));
    }
    EXPECT_EQ(job_.Event("node_lost")["node"], node);
    EXPECT_EQ(job_.Event("join_refused")["node"], node);
    EXPECT_EQ(job_.Event("join_refused")["kind"], "address");
    EXPECT_EQ(job_.Event("restart_scheduled")["free"], true);
    EXPECT_EQ(job_.Event("restart_scheduled")["delay_seconds"], 0.0);
    EXPECT_EQ(job_.state.history.restarts_charged, 0u);
    EXPECT_EQ(job_.Count("node_left_out"), 0);
    EXPECT_EQ(job_.state.failures.back().node, node);
    EXPECT_TRUE(job_.state.strikes.empty());
  }
  CoreHarness job_;
};

TEST_F(Unreachable, NodeGoesAndNotTheOneThatTellsSo) {
  Start({"a", "b", "c"}, 3);
  Accuse("a", "b");
  EXPECT_EQ(job_.state.phase, Phase::kStopping);
  EXPECT_EQ(job_.RefusalOf("b").kind(), v1::Refusal::KIND_UNSPECIFIED);  // its workers end first
  job_.StopAll();
  ExpectSentAway("b", "a");
  job_.Choose();
  EXPECT_THAT(job_.Members(), ElementsAre("a", "c"));
}

TEST_F(Unreachable, NodeOfRankZeroGoesWhenAllOthersTellSo) {
  Start({"b", "a", "c"}, 3);
  Accuse("a", "b");
  EXPECT_EQ(job_.state.phase, Phase::kRunning) << "c has not told yet";
  Accuse("c", "b");
  EXPECT_EQ(job_.state.phase, Phase::kStopping);
  job_.StopAll();
  ExpectSentAway("b", "a");
  EXPECT_THAT(job_.RefusalOf("b").reason(), HasSubstr("node c"));
  job_.Choose();
  EXPECT_THAT(job_.Members(), testing::UnorderedElementsAre("a", "c"));
}

TEST_F(Unreachable, NodeOfRankZeroGoesWhenTheOthersStaySilent) {
  Start({"b", "a", "c"}, 3);
  Accuse("a", "b");
  job_.Pass(1.1);
  EXPECT_EQ(job_.state.phase, Phase::kStopping);
  job_.StopAll();
  ExpectSentAway("b", "a");
}

// One of several that cannot reach rank 0's node has the trouble itself, and is named.
TEST_F(Unreachable, NodeStaysThatOthersHaveReached) {
  Start({"b", "a", "c"}, 3);
  StartWorkersOf("c");
  Accuse("a", "b");
  EXPECT_EQ(job_.state.phase, Phase::kStopping);
  job_.StopAll();
  EXPECT_EQ(job_.RefusalOf("b").kind(), v1::Refusal::KIND_UNSPECIFIED);
  EXPECT_EQ(job_.Event("node_left_out")["node"], "a");
  EXPECT_EQ(job_.state.failures.back().node, "a");
  EXPECT_THAT(job_.state.failures.back().reason,
              HasSubstr("1 other node has reached it, so the trouble is node a's"));
  EXPECT_EQ(job_.state.history.restarts_charged, 1u);
}

// Each of the two says that it cannot reach the other: the first one counts.
TEST_F(Unreachable, NodeIsNotHeardThatIsAccusedItself) {
  Start({"a", "b"}, 2);
  Accuse("a", "b");
  Accuse("b", "a");
  ExpectSentAway("b", "a");
  EXPECT_EQ(job_.state.phase, Phase::kWaiting);
  job_.Pass(61);
  ASSERT_TRUE(job_.outcome);
  EXPECT_EQ(job_.outcome->exit_code, 4);
  EXPECT_THAT(job_.outcome->reason, HasSubstr("sent away: node b cannot be reached"));
}

TEST_F(Unreachable, AddressOfNobodyIsTheTroubleOfItsNode) {
  Start({"a", "b", "c"}, 3);
  Accuse("a", "10.1.2.3");
  job_.StopAll();
  EXPECT_EQ(job_.Event("node_left_out")["node"], "a");
  EXPECT_EQ(job_.Count("join_refused"), 0);
}

// Free of charge, but not without end.
TEST_F(Unreachable, NodesAreChargedOnceTheFreeRestartsAreUsedUp) {
  job_.spec.mutable_restart()->set_free_restarts_limit(0);
  Start({"a", "b", "c"}, 3);
  Accuse("a", "b");
  job_.StopAll();
  EXPECT_EQ(job_.RefusalOf("b").kind(), v1::Refusal::ADDRESS);
  EXPECT_EQ(job_.state.history.restarts_charged, 1u);
}

}  // namespace
}  // namespace ddprun::coordinator
