// Nodes that leave, are lost, are replaced, and come back (R3, R6, R7, R8, R13, L34, L35, L37).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using C = v1::CoordinatorMessage;

// Four nodes, of which three must be there; everybody is ready.
class Membership : public testing::Test {
 protected:
  Membership() : job_(4) { job_.spec.set_nodes_min(3); }
  void Start() {
    job_.Start();
    job_.ReadyAll();
    job_.Progress(5);
    job_.Clear();
  }
  // A node's link is cut; the others are stopped.
  void LoseSilently(const std::string& node) {
    job_.Detach(node);
    job_.PassSilently(4.1, {node});
    StopOthers(node);
  }
  void StopOthers(const std::string& node) {
    for (uint32_t rank = 0; rank < job_.state.generation.workers.size(); ++rank) {
      if (job_.NodeOf(rank) != node) job_.Exit(rank, 1, 0, true);
    }
    job_.StopAll();
  }
  CoreHarness job_;
};

// R6, L35: one agent that leaves closes nothing: a checkpoint, and the others go on without it,
// free of charge.
TEST_F(Membership, ANodeThatLeavesCostsACheckpointAndNoRestart) {
  Start();
  job_.Leave("b");
  EXPECT_THAT(std::string(job_.Event("resize_planned")["reason"]),
              HasSubstr("node b leaves (maintenance): resize from 4 to 3 nodes"));
  EXPECT_EQ(job_.CountSent("a", C::kEdgeRequest), 1);
  EXPECT_EQ(job_.CountSent("b", C::kReleased), 0);
  job_.StopWithCheckpoint(9);
  EXPECT_EQ(job_.CountSent("b", C::kReleased), 1);
  EXPECT_EQ(job_.CountSent("a", C::kStopWorkers), 0);  // they ended by themselves
  EXPECT_EQ(job_.Event("node_lost")["planned"], true);
  EXPECT_EQ(job_.Event("restart_scheduled")["free"], true);
  ASSERT_TRUE(job_.choosing);
  job_.Choose(9);
  EXPECT_THAT(job_.Members(), ElementsAre("a", "d", "c"));
  EXPECT_EQ(job_.state.generation.resume_step, 9u);
  EXPECT_EQ(job_.state.history.restarts_charged, 0u);
  EXPECT_EQ(job_.CountSent("b", C::kStartWorkers), 0);
}

// L35: ten times in a row, as fast as it can.
TEST_F(Membership, ANodeMayLeaveAndComeBackTenTimes) {
  job_.spec.mutable_restart()->set_max_restarts(0);
  Start();
  for (int i = 0; i < 10; ++i) {
    job_.Leave("b");
    job_.StopWithCheckpoint(10 + 20 * i);
    job_.Detach("b");
    job_.Join("b", absl::StrCat("again", i));
    job_.Choose(10 + 20 * i);
    job_.ReadyAll();
    ASSERT_THAT(job_.Members(), testing::Contains("b")) << i;
  }
  EXPECT_FALSE(job_.outcome);
  EXPECT_EQ(job_.state.history.restarts_charged, 0u);
}

// Without libddprun nobody can agree on a step: signals, within the grace.
TEST_F(Membership, WorkersThatDoNotSpeakAreStoppedBySignals) {
  job_.spec.clear_train_config_json();
  job_.Start();
  job_.Leave("d");
  EXPECT_EQ(job_.LastSent("a", C::kStopWorkers)->stop_workers().mode(), v1::StopWorkers::STOP);
  for (uint32_t rank = 0; rank < 8; ++rank) job_.Exit(rank, 0, 15, true);
  job_.StopAll();
  EXPECT_EQ(job_.Event("restart_scheduled")["free"], true);
  job_.Choose();
  EXPECT_THAT(job_.Members(), ElementsAre("a", "b", "c"));
}

// A checkpoint that does not come in time is not waited for.
TEST_F(Membership, ALeaveEndsWithTheGrace) {
  Start();
  job_.Leave("b");
  job_.Pass(30.1);
  EXPECT_EQ(job_.LastSent("a", C::kStopWorkers)->stop_workers().mode(), v1::StopWorkers::KILL);
  for (uint32_t rank = 0; rank < 8; ++rank) job_.Exit(rank, 0, 9, true);
  job_.StopAll();
  EXPECT_EQ(job_.CountSent("b", C::kReleased), 1);
  job_.Choose();
  EXPECT_EQ(job_.state.phase, Phase::kRunning);
  EXPECT_EQ(job_.state.history.restarts_charged, 0u);
  // Simulator seed 18: … and the deadline of that generation is none of the next one.
  job_.Pass(60);
  EXPECT_EQ(job_.state.phase, Phase::kRunning);
}

// The job's end wins over leaving.
TEST_F(Membership, WorkThatIsDoneWinsOverLeaving) {
  Start();
  v1::AgentMessage result;
  result.mutable_worker_result()->set_generation(1);
  (*result.mutable_worker_result()->mutable_values())["test_accuracy"] = "0.9";
  job_.Say("a", result);
  job_.Leave("b");
  for (uint32_t rank = 0; rank < 8; ++rank) job_.Exit(rank, 0);
  job_.StopAll();
  ASSERT_TRUE(job_.outcome);
  EXPECT_EQ(job_.outcome->status, "succeeded");
  EXPECT_EQ(job_.CountSent("b", C::kJobEnded), 1);
}

// A stop that comes while a node leaves is the end.
TEST_F(Membership, AStopWinsOverLeaving) {
  Start();
  job_.Leave("b");
  job_.Ask(v1::ControlRequest::STOP, 15);
  job_.StopWithCheckpoint(9);
  ASSERT_TRUE(job_.outcome);
  EXPECT_EQ(job_.outcome->exit_code, 143);
}

// A failure meanwhile is one, and is charged; the node goes all the same.
TEST_F(Membership, AFailureWhileANodeLeavesIsCharged) {
  Start();
  job_.Leave("b");
  job_.FailGeneration(0);
  EXPECT_EQ(job_.state.history.restarts_charged, 1u);
  EXPECT_EQ(job_.CountSent("b", C::kReleased), 1);
  job_.Choose();
  EXPECT_THAT(job_.Members(), ElementsAre("a", "d", "c"));
}

// R6: a spare, and a node between two generations, go at once.
TEST_F(Membership, ASpareLeavesWithoutDisturbingAnybody) {
  Start();
  job_.Join("e");
  EXPECT_EQ(job_.Event("node_joined")["spare"], true);
  job_.Leave("e");
  EXPECT_EQ(job_.CountSent("e", C::kReleased), 1);
  EXPECT_EQ(job_.Count("resize_planned"), 0);
  job_.Detach("e");
  EXPECT_FALSE(job_.state.nodes.contains("e"));
  EXPECT_EQ(job_.state.phase, Phase::kRunning);
}

// R8: surplus nodes are spares in every phase.
TEST_F(Membership, ANodeTooManyIsASpareInEveryPhase) {
  job_.Submit();
  auto joins_as_spare = [this](const std::string& name) {
    job_.Join(name);
    return job_.Event("node_joined").contains("spare");
  };
  for (const char* node : {"a", "b", "c", "d"}) EXPECT_FALSE(joins_as_spare(node));
  EXPECT_TRUE(joins_as_spare("choosing"));
  job_.Choose();
  EXPECT_TRUE(joins_as_spare("running"));
  job_.Exit(0, 1);
  EXPECT_TRUE(joins_as_spare("stopping"));
  for (uint32_t rank = 1; rank < 8; ++rank) job_.Exit(rank, 1, 0, true);
  job_.StopAll();
  job_.Choose();
  job_.FailGeneration();  // the second in a row waits
  ASSERT_EQ(job_.state.phase, Phase::kBackingOff);
  EXPECT_TRUE(joins_as_spare("backing"));
  job_.Pass(70);
  job_.Choose();
  EXPECT_THAT(job_.Members(), ElementsAre("a", "b", "c", "d"));
  EXPECT_FALSE(job_.outcome);
}

// R7, R8, L34: a spare takes the lost node's place; the ranks of the others stay.
TEST_F(Membership, ASpareTakesThePlaceOfALostNode) {
  Start();
  job_.Join("e");
  LoseSilently("b");
  job_.Choose();
  EXPECT_THAT(job_.Members(), ElementsAre("a", "e", "c", "d"));
  EXPECT_EQ(job_.LastSent("c", C::kStartWorkers)->start_workers().first_rank(), 4u);
}

// L34: without a spare the others go on at once; nobody is waited for.
TEST_F(Membership, ShrinksAsSoonAsTheOthersAreStopped) {
  Start();
  LoseSilently("b");
  EXPECT_TRUE(job_.choosing);
}

// … or it waits, by policy, for the join timeout at most.
TEST_F(Membership, WaitsForAReplacementWhereThatIsWished) {
  for (const bool comes : {true, false}) {
    CoreHarness job(4);
    job.spec.set_nodes_min(3);
    job.spec.mutable_membership()->set_wait_for_replacement(true);
    job.Start();
    job.PassSilently(4.1, {"b"});
    for (uint32_t rank : {0, 1, 4, 5, 6, 7}) job.Exit(rank, 1, 0, true);
    job.StopAll();
    ASSERT_EQ(job.state.phase, Phase::kWaiting);
    job.PassSilently(30, {"b"});
    ASSERT_FALSE(job.choosing);
    if (comes) job.Join("x");
    if (!comes) job.PassSilently(31, {"b"});
    ASSERT_TRUE(job.choosing);
    job.Choose();
    EXPECT_EQ(absl::StrJoin(job.Members(), " "), comes ? "a x c d" : "a d c");
  }
}

// Newcomers that come together cost one resize, a checkpoint, and no restart.
TEST_F(Membership, GrowsByOneResizeForSeveralNewcomers) {
  job_.spec.set_nodes_max(6);
  job_.Submit();
  for (const char* node : {"a", "b", "c"}) job_.Join(node);
  job_.Pass(3.1);
  job_.Choose();
  job_.ReadyAll();
  job_.Join("d");
  EXPECT_FALSE(job_.Event("node_joined").contains("spare"));
  job_.Pass(0.6);
  job_.Join("e");
  job_.Pass(0.6);
  EXPECT_EQ(job_.Count("resize_planned"), 0);
  job_.Pass(0.5);
  EXPECT_EQ(job_.Count("resize_planned"), 1);
  job_.StopWithCheckpoint(12);
  EXPECT_THAT(std::string(job_.Event("generation_ended")["reason"]),
              HasSubstr("nodes d, e joined: resize from 3 to 5 nodes"));
  job_.Choose(12);
  EXPECT_THAT(job_.Members(), ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_EQ(job_.state.history.restarts_charged, 0u);
}

TEST_F(Membership, KeepsItsSizeWhereThatIsWished) {
  job_.spec.mutable_membership()->set_keep_size(true);
  Start();
  LoseSilently("b");
  job_.Choose();
  job_.ReadyAll();
  job_.Join("x");
  EXPECT_EQ(job_.Event("node_joined")["spare"], true);
  job_.Pass(10);
  EXPECT_EQ(job_.Count("resize_planned"), 0);
  job_.FailGeneration();  // … until a generation ends for another reason
  job_.Pass(5);
  job_.Choose();
  EXPECT_THAT(job_.Members(), testing::SizeIs(4));
}

// Workers that are about to take part in agreed steps are worth the wait.
TEST_F(Membership, GrowsWhenTheTrainerIsReady) {
  job_.Submit();
  for (const char* node : {"a", "b", "c"}) job_.Join(node);
  job_.Pass(3.1);
  job_.Choose();
  job_.Join("d");
  job_.Pass(5);
  EXPECT_EQ(job_.Count("resize_planned"), 0);
  job_.ReadyAll();
  job_.Pass(1.1);
  EXPECT_EQ(job_.Count("resize_planned"), 1);
}

// Planned resizes have a limit of their own; then newcomers wait.
TEST_F(Membership, DoesNotGrowBeyondTheLimitOfFreeRestarts) {
  job_.spec.mutable_restart()->set_free_restarts_limit(0);
  job_.Submit();
  for (const char* node : {"a", "b", "c"}) job_.Join(node);
  job_.Pass(3.1);
  job_.Choose();
  job_.ReadyAll();
  job_.Join("d");
  job_.Pass(10);
  EXPECT_EQ(job_.Count("resize_planned"), 0);
}

// R13: a node leaves while the next generation is being planned, and while it is being stopped.
TEST_F(Membership, ANodeMayLeaveWhileTheNextGenerationIsPlanned) {
  Start();
  job_.Exit(0, 1);
  job_.Leave("c");
  EXPECT_EQ(job_.CountSent("c", C::kReleased), 0);
  for (uint32_t rank = 1; rank < 8; ++rank) job_.Exit(rank, 1, 0, true);
  job_.StopAll();
  EXPECT_EQ(job_.CountSent("c", C::kReleased), 1);
  job_.Leave("d");  // too few are left now
  job_.Choose();
  EXPECT_EQ(job_.state.phase, Phase::kWaiting);
  job_.Join("e");
  job_.Choose();
  EXPECT_THAT(job_.Members(), ElementsAre("a", "b", "e"));
}

// L37, S10: a node that comes back from a pause is told to end what it runs.
TEST_F(Membership, ANodeThatReturnsFromAPauseIsFenced) {
  Start();
  LoseSilently("b");
  job_.Choose();
  job_.Join("b", "1", /*runs=*/1);
  EXPECT_EQ(job_.LastSent("b", C::kStopWorkers)->stop_workers().mode(), v1::StopWorkers::KILL);
  EXPECT_EQ(job_.LastSent("b", C::kStopWorkers)->stop_workers().generation(), 1u);
}

// Workers that their own node has ended are its loss, and no worker's failure.
TEST_F(Membership, WorkersThatTheirNodeEndsAreALostNode) {
  Start();
  job_.Exit(2, 0, 9, /*by_order=*/true);
  job_.Exit(3, 0, 9, true);
  job_.Leave("b", /*planned=*/false);
  StopOthers("b");
  const FailureRecord& failure = job_.state.failures.back();
  EXPECT_EQ(failure.cause, Cause::kNodeLost);
  EXPECT_EQ(failure.node, "b");
}

// S16, L39: the end says who came and who is missing.
TEST(NodesMissing, AreNamedWhereTheyAreKnown) {
  CoreHarness job(3);
  for (const char* node : {"a", "b", "c"}) job.spec.mutable_membership()->add_expected_nodes(node);
  job.Submit();
  job.Join("c");
  job.Pass(61);
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->exit_code, 3);
  EXPECT_THAT(job.outcome->reason, HasSubstr("1 of 3 nodes came within 60 s: c; missing: a, b"));
}

// S22: uneven numbers of workers; each node hears of all places.
TEST(Places, AreToldToEachNode) {
  CoreHarness job(2);
  job.Submit();
  v1::Hello hello = CoreHarness::HelloOf("a");
  hello.set_address("10.0.0.1");
  hello.set_master_port(4711);
  job.JoinWith(hello);
  hello = CoreHarness::HelloOf("b");
  hello.set_address("10.0.0.2");
  hello.set_slots(3);
  job.JoinWith(hello);
  job.Choose();
  for (const char* node : {"a", "b"}) {
    const v1::StartWorkers& start = job.LastSent(node, C::kStartWorkers)->start_workers();
    EXPECT_EQ(start.master_address(), "10.0.0.1");
    EXPECT_EQ(start.master_port(), 4711u);
    EXPECT_EQ(start.world_size(), 5u);
    ASSERT_EQ(start.nodes_size(), 2);
    EXPECT_EQ(start.nodes(1).first_rank(), 2u);
    EXPECT_EQ(start.nodes(1).count(), 3u);
    EXPECT_EQ(start.next_address(), *node == 'a' ? "10.0.0.2" : "10.0.0.1");
  }
  // The port is used up; the next generation has another one.
  job.Exit(0, 1);
  for (uint32_t rank = 1; rank < 5; ++rank) job.Exit(rank, 1, 0, true);
  v1::AgentMessage stopped;
  stopped.mutable_generation_stopped()->set_generation(1);
  stopped.mutable_generation_stopped()->set_master_port(4712);
  job.Say("a", stopped);
  job.StopNode("b");
  job.Choose();
  EXPECT_EQ(job.LastSent("b", C::kStartWorkers)->start_workers().master_port(), 4712u);
}

// What all nodes are told of all nodes would grow with the square of their number.
TEST(Places, OfMoreThan64NodesAreNotTold) {
  for (const uint32_t nodes : {64u, 65u}) {
    CoreHarness job(nodes);
    job.Submit();
    for (uint32_t i = 0; i < nodes; ++i) job.Join(absl::StrCat("n", i));
    job.Choose();
    const v1::StartWorkers& start = job.LastSent("n7", C::kStartWorkers)->start_workers();
    EXPECT_EQ(start.nodes_size(), nodes == 64 ? 64 : 0);
    EXPECT_NE(start.master_address(), "");
    EXPECT_NE(start.next_address(), "");
  }
}

}  // namespace
}  // namespace ddprun::coordinator
