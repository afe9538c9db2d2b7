// From one generation to the next: joining, leaving, failing at awkward moments, and the exchange.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using testing::HasSubstr;
using C = v1::CoordinatorMessage;

v1::AgentMessage Publish(uint64_t generation, uint32_t rank, const std::string& value) {
  v1::AgentMessage message;
  message.mutable_publish()->set_generation(generation);
  message.mutable_publish()->set_rank(rank);
  message.mutable_publish()->set_group("world");
  message.mutable_publish()->set_name("nccl");
  message.mutable_publish()->set_value(value);
  return message;
}

v1::AgentMessage Await(uint64_t generation, uint32_t rank) {
  v1::AgentMessage message;
  message.mutable_await()->set_generation(generation);
  message.mutable_await()->set_rank(rank);
  message.mutable_await()->set_group("world");
  message.mutable_await()->set_name("nccl");
  return message;
}

TEST(Start, GivesConsecutiveRanksAndOneWorldSize) {
  CoreHarness job(3);
  job.Start();
  uint32_t next = 0;
  for (const char* node : {"a", "b", "c"}) {
    const auto& start = job.LastSent(node, C::kStartWorkers)->start_workers();
    EXPECT_EQ(start.first_rank(), next);
    EXPECT_EQ(start.world_size(), 6u);
    EXPECT_EQ(start.generation(), 1u);
    EXPECT_EQ(start.master_address(), "a");
    next += start.local_world_size();
  }
}

// R1: one agent restarts alone. While its old self counts it is refused; then all get the same new
// generation.
TEST(Agent, ThatRestartsAloneGetsTheSameGenerationAsAllOthers) {
  CoreHarness job;
  job.Start();
  job.ReadyAll();
  job.Detach("b");
  job.Clear();
  job.Join("b", "2");
  ASSERT_NE(job.LastSent("b", C::kRefusal), nullptr);
  EXPECT_THAT(job.LastSent("b", C::kRefusal)->refusal().reason(), HasSubstr("is here already"));
  EXPECT_EQ(job.state.generation.number, 1u);  // nothing is replaced before its lease is over

  job.PassSilently(4, {"b"});
  EXPECT_EQ(job.Event("node_lost")["node"], "b");
  EXPECT_EQ(job.LastSent("a", C::kStopWorkers)->stop_workers().mode(), v1::StopWorkers::ABORT);
  job.Join("b", "2");
  job.Exit(0, 1, 0, true);
  job.Exit(1, 1, 0, true);
  job.StopNode("a");
  job.Choose();
  for (const char* node : {"a", "b"}) {
    EXPECT_EQ(job.LastSent(node, C::kStartWorkers)->start_workers().generation(), 2u);
  }
  EXPECT_EQ(job.state.history.restarts_charged, 1u);
}

// R4, L34: a silent node is replaced a second after its lease, not earlier.
TEST(Node, ThatIsSilentIsLostASecondAfterItsLease) {
  CoreHarness job;
  job.Start();
  job.Pass(1);
  job.PassSilently(3.4, {"b"});
  EXPECT_EQ(job.Count("node_lost"), 0);
  job.PassSilently(0.7, {"b"});
  EXPECT_EQ(job.Count("node_lost"), 1);
}

// R13: a node dies, and a worker's death is told, while the next generation is being planned.
TEST(Planning, GoesOnWhenANodeIsLostMeanwhile) {
  CoreHarness job(3);
  job.spec.set_nodes_min(2);
  job.Start();
  job.FailGeneration();
  ASSERT_EQ(job.state.phase, Phase::kChoosing);
  v1::AgentMessage late;  // of the generation that is over
  late.mutable_worker_exited()->set_generation(1);
  late.mutable_worker_exited()->set_signal(9);
  job.Say("a", late);
  v1::AgentMessage leaving;
  leaving.mutable_leaving()->set_reason("maintenance");
  job.Say("c", leaving);
  job.Choose();
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  EXPECT_EQ(job.state.generation.workers.size(), 4u);
  EXPECT_EQ(job.state.history.restarts_charged, 1u);
}

// R13: … and waits when too few are left; the number that was taken is not used again.
TEST(Planning, WaitsWhenTooFewNodesAreLeft) {
  CoreHarness job;
  job.Start();
  job.FailGeneration();
  ASSERT_EQ(job.state.phase, Phase::kChoosing);
  v1::AgentMessage leaving;
  leaving.mutable_leaving()->set_reason("maintenance");
  job.Say("b", leaving);
  job.Choose();
  EXPECT_EQ(job.state.phase, Phase::kWaiting);
  job.Join("b", "2");
  ASSERT_EQ(job.state.phase, Phase::kChoosing);
  job.Choose();
  EXPECT_EQ(job.state.generation.number, 3u);
  EXPECT_EQ(job.state.history.restarts_charged, 1u);
}

// R13: a worker fails while others of its generation have not even begun.
TEST(Planning, EndsAGenerationThatFailsBeforeAllHaveStarted) {
  CoreHarness job;
  job.Start();
  job.Exit(0, 1);
  EXPECT_EQ(job.state.phase, Phase::kStopping);
  EXPECT_NE(job.LastSent("b", C::kStopWorkers), nullptr);
  job.StopAll();
  EXPECT_EQ(job.state.phase, Phase::kChoosing);
}

// Nothing new begins while something of the old may live.
TEST(Planning, WaitsForEveryNodeToBeDone) {
  CoreHarness job;
  job.Start();
  job.Exit(0, 1);
  job.StopNode("a");
  job.Pass(20);
  EXPECT_EQ(job.state.phase, Phase::kStopping);
  job.StopNode("b");
  EXPECT_EQ(job.state.phase, Phase::kChoosing);
}

// R8, S16: agents beyond the maximum become spares in every phase, and one replaces a lost node.
TEST(Spare, TakesThePlaceOfALostNode) {
  CoreHarness job;
  job.Start();
  job.Join("c");
  EXPECT_EQ(job.LastSent("c", C::kStartWorkers), nullptr);
  job.PassSilently(4.5, {"b"});
  job.Exit(0, 1, 0, true);
  job.Exit(1, 1, 0, true);
  job.StopNode("a");
  job.Choose();
  EXPECT_EQ(job.LastSent("c", C::kStartWorkers)->start_workers().first_rank(), 2u);
}

// Latecomers of MIN:MAX are awaited for a moment, and that never becomes a busy loop (simulator
// seed 272).
TEST(LastCall, BeginsAnewWhenANodeLeaves) {
  CoreHarness job;
  job.spec.set_nodes_min(2);
  job.spec.set_nodes_max(3);
  job.Submit();
  job.Join("a");
  job.Join("b");
  job.Pass(1);
  v1::AgentMessage leaving;
  leaving.mutable_leaving()->set_reason("maintenance");
  job.Say("b", leaving);
  job.Pass(10);
  EXPECT_GT(NextDeadlineNs(job.state), job.now_ns);
  job.Join("b", "2");
  job.Pass(2.9);
  EXPECT_EQ(job.state.phase, Phase::kWaiting);
  job.Pass(0.2);
  EXPECT_EQ(job.state.phase, Phase::kChoosing);
}

TEST(LastCall, DoesNotOutliveTheJoinTimeout) {
  CoreHarness job;
  job.spec.set_nodes_max(3);
  job.spec.set_join_timeout_seconds(1);
  job.Submit();
  job.Join("a");
  job.Join("b");
  job.Pass(1.1);
  EXPECT_FALSE(job.outcome);
  EXPECT_EQ(job.state.phase, Phase::kChoosing);
}

TEST(JoinTimeout, IsOverAtOnceWhenNoMoreNodesCanCome) {
  CoreHarness job;
  job.Submit();
  job.Join("a");
  job.Ask(v1::ControlRequest::NO_MORE_NODES);
  job.Pass(0.1);
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->exit_code, 3);
  EXPECT_EQ(job.outcome->failure_kind, "nodes_missing");
  EXPECT_EQ(job.outcome->reason, "1 of 2 nodes came: a, and no more can come");

  CoreHarness complete;
  complete.Start();
  complete.Ask(v1::ControlRequest::NO_MORE_NODES);
  complete.Pass(0.1);
  EXPECT_FALSE(complete.outcome);
}

TEST(JoinTimeout, EndsWith3AndAfterALossWith4) {
  CoreHarness job;
  job.Submit();
  job.Join("a");
  job.Pass(61);
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->exit_code, 3);
  EXPECT_EQ(job.outcome->failure_kind, "nodes_missing");

  CoreHarness later;
  later.Start();
  later.PassSilently(5, {"b"});
  later.StopNode("a");
  later.PassSilently(61, {"b"});
  ASSERT_TRUE(later.outcome);
  EXPECT_EQ(later.outcome->exit_code, 4);
  EXPECT_EQ(later.outcome->failure_kind, "node_lost");
}

// ---- the exchange (L26, S12)

TEST(Exchange, GivesAValueToThoseWhoAskedBeforeAndAfter) {
  CoreHarness job;
  job.Start();
  job.Say("b", Await(1, 2));
  job.Say("a", Publish(1, 0, "id-1"));
  EXPECT_EQ(job.LastSent("b", C::kValue)->value().value(), "id-1");
  EXPECT_EQ(job.LastSent("b", C::kValue)->value().rank(), 2u);
  job.Say("b", Await(1, 3));
  EXPECT_EQ(job.LastSent("b", C::kValue)->value().rank(), 3u);
}

// L26, S12.
TEST(Exchange, RefusesWorkersOfAnOldGeneration) {
  CoreHarness job;
  job.Start();
  job.Say("a", Publish(1, 0, "id-1"));
  job.FailGeneration();
  job.Choose();
  ASSERT_EQ(job.state.generation.number, 2u);
  job.Clear();
  job.Say("b", Await(1, 2));  // neither the old id …
  ASSERT_NE(job.LastSent("b", C::kExchangeRefused), nullptr);
  EXPECT_EQ(job.LastSent("b", C::kExchangeRefused)->exchange_refused().generation(), 1u);
  job.Say("a", Publish(1, 0, "stale"));  // … nor may it reach the new one
  EXPECT_NE(job.LastSent("a", C::kExchangeRefused), nullptr);
  job.Say("b", Await(2, 2));
  EXPECT_EQ(job.LastSent("b", C::kValue), nullptr);
  job.Say("a", Publish(2, 0, "id-2"));
  EXPECT_EQ(job.LastSent("b", C::kValue)->value().value(), "id-2");
  EXPECT_EQ(job.LastSent("b", C::kValue)->value().generation(), 2u);
}

TEST(Exchange, RefusesOtherBytesUnderTheSameName) {
  CoreHarness job;
  job.Start();
  job.Say("a", Publish(1, 0, "one"));
  job.Say("a", Publish(1, 0, "one"));
  EXPECT_EQ(job.LastSent("a", C::kExchangeRefused), nullptr);
  job.Say("a", Publish(1, 0, "two"));
  EXPECT_NE(job.LastSent("a", C::kExchangeRefused), nullptr);
}

// ---- links

// Simulator seed 70: the core read the name of the node that it had just forgotten.
TEST(Node, ThatLeavesIsNamedInTheEvent) {
  CoreHarness job;
  job.Start();
  v1::AgentMessage leaving;
  leaving.mutable_leaving()->set_reason("maintenance");
  job.Say("b", leaving);
  EXPECT_EQ(job.Event("node_lost")["node"], "b");
  EXPECT_THAT(std::string(job.Event("node_lost")["reason"]), HasSubstr("maintenance"));
}

TEST(Link, RepeatsWhatWasNotAcknowledgedAfterANewAttach) {
  CoreHarness job;
  job.Submit();
  job.Join("a");
  job.Join("b");
  job.Detach("b");
  job.Join("b");  // the same agent, on a new stream, before anything was planned
  job.Choose();
  job.Detach("a");
  job.Clear();
  job.Join("a");
  EXPECT_EQ(job.CountSent("a", C::kWelcome), 1);
  EXPECT_EQ(job.CountSent("a", C::kStartWorkers), 1);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
}

// Simulator seed 1814: an agent whose first Welcome was lost counts on an older link, and its
// acknowledgement says nothing about the present one.
TEST(Link, IsNotAcknowledgedByAnAgentThatDoesNotKnowIt) {
  CoreHarness job;
  job.Start();
  job.Clear();
  v1::AgentMessage message;
  auto* hello = message.mutable_hello();
  hello->set_protocol_version(1);
  hello->set_node("a");
  hello->set_incarnation("1");
  hello->set_slots(2);
  hello->set_link(99);
  message.set_ack(50);
  for (const Effect& effect : Step(job.state, NodeMessage{"a", "1", message}, job.now_ns)) {
    if (const auto* send = std::get_if<SendToNode>(&effect)) {
      job.sent.emplace_back(send->node, send->message);
    }
  }
  EXPECT_EQ(job.CountSent("a", C::kStartWorkers), 1);
  EXPECT_NE(job.LastSent("a", C::kWelcome)->welcome().link(), 0u);
}

}  // namespace
}  // namespace ddprun::coordinator
