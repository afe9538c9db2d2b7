// A coordinator that takes over a run folder: what an earlier one ordered may still run somewhere.
#include <gtest/gtest.h>

#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using C = v1::CoordinatorMessage;

class CoreResume : public testing::Test {
 protected:
  CoreResume() {
    job_.spec.set_resume(true);
    job_.past.generation = 4;
  }
  void SayStopped(const std::string& node, uint64_t generation) {
    v1::AgentMessage message;
    message.mutable_generation_stopped()->set_generation(generation);
    job_.Say(node, message);
  }
  CoreHarness job_;
};

TEST_F(CoreResume, WaitsUntilTheLeasesOfTheEarlierCoordinatorAreOver) {
  job_.past.may_run = true;
  job_.Submit();
  job_.Join("a");
  job_.Join("b");
  job_.Pass(3.9);
  EXPECT_EQ(job_.state.phase, Phase::kWaiting);
  job_.Pass(0.2);
  ASSERT_EQ(job_.state.phase, Phase::kChoosing);
  EXPECT_EQ(job_.state.generation.number, 5u);
}

TEST_F(CoreResume, DoesNotCountThatWaitAgainstTheJoinTimeout) {
  job_.past.may_run = true;
  job_.spec.set_join_timeout_seconds(1);
  job_.Submit();
  job_.Join("a");
  job_.Pass(4.5);
  EXPECT_FALSE(job_.outcome);
  job_.Join("b");
  EXPECT_EQ(job_.state.phase, Phase::kChoosing);
}

TEST_F(CoreResume, BeginsAtOnceWhenTheNewestGenerationWasSeenToEnd) {
  job_.Submit();
  job_.Join("a");
  job_.Join("b");
  EXPECT_EQ(job_.state.phase, Phase::kChoosing);
}

// On a single node there is no lease: a keeper ends everything when its launcher is gone.
TEST_F(CoreResume, BeginsAtOnceWithoutALease) {
  job_.past.may_run = true;
  job_.spec.set_lease_seconds(0);
  job_.Submit();
  job_.Join("a");
  job_.Join("b");
  EXPECT_EQ(job_.state.phase, Phase::kChoosing);
}

TEST_F(CoreResume, WaitsForANodeThatStillEndsAnOldGeneration) {
  job_.Submit();
  job_.Join("a", "1", /*runs=*/4);
  ASSERT_NE(job_.LastSent("a", C::kStopWorkers), nullptr);
  EXPECT_EQ(job_.LastSent("a", C::kStopWorkers)->stop_workers().mode(), v1::StopWorkers::KILL);
  job_.Join("b");
  job_.Pass(10);
  EXPECT_EQ(job_.state.phase, Phase::kWaiting);
  SayStopped("a", 3);
  EXPECT_EQ(job_.state.phase, Phase::kWaiting);
  SayStopped("a", 4);
  EXPECT_EQ(job_.state.phase, Phase::kChoosing);
}

TEST_F(CoreResume, GoesOnWithoutThatNodeWhenItIsLost) {
  job_.spec.set_nodes_max(2);
  job_.spec.set_nodes_min(1);
  job_.Submit();
  job_.Join("a", "1", /*runs=*/4);
  job_.Join("b");
  job_.PassSilently(4.5, {"a"});
  EXPECT_EQ(job_.Event("node_lost")["node"], "a");
  job_.Pass(3.5);  // latecomers
  EXPECT_EQ(job_.state.phase, Phase::kChoosing);
}

// A rejection counts also when the nodes were gone before its generation could start (found by the
// simulator).
TEST(Rejection, CountsWhenNoGenerationComesOfIt) {
  CoreHarness job;
  job.Start();
  for (uint32_t rank = 0; rank < 4; ++rank) job.Checkpoint(rank, 10, v1::CheckpointFact::WRITTEN);
  job.Stored(true);
  EXPECT_EQ(job.state.committed_step, 10u);
  job.FailGeneration();
  job.Detach("b");
  job.Choose(0, {{10, "step-10.bad-g2", "damaged"}});
  EXPECT_EQ(job.Count("checkpoint_rejected"), 1);
  EXPECT_EQ(job.state.phase, Phase::kWaiting);
  EXPECT_EQ(job.state.committed_step, 0u);
}

}  // namespace
}  // namespace ddprun::coordinator
