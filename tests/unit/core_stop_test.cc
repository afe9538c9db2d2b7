// A stop in every phase ends in bound, with the status stopped and 128 + n (S24), and checkpoints
// as agreed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using C = v1::CoordinatorMessage;
using R = v1::ControlRequest;

void ExpectStopped(const CoreHarness& job, int32_t code) {
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->status, "stopped");
  EXPECT_EQ(job.outcome->exit_code, code);
}

// S24.
TEST(Stop, WhileNodesAreAwaited) {
  CoreHarness job;
  job.Submit();
  job.Join("a");
  job.Ask(R::STOP, 15);
  ExpectStopped(job, 143);
  EXPECT_EQ(job.CountSent("a", C::kJobEnded), 1);
}

TEST(Stop, WhileTheResumeStepIsChosen) {
  CoreHarness job;
  job.Submit();
  job.Join("a");
  job.Join("b");
  ASSERT_EQ(job.state.phase, Phase::kChoosing);
  job.Ask(R::STOP, 2);
  ExpectStopped(job, 130);
  job.Choose();  // comes too late
  EXPECT_EQ(job.LastSent("a", C::kStartWorkers), nullptr);
}

// S24.
TEST(Stop, WhileWorkersStartGoesBySignal) {
  CoreHarness job;
  job.Start();
  job.Ask(R::STOP, 15);
  EXPECT_EQ(job.LastSent("a", C::kStopWorkers)->stop_workers().mode(), v1::StopWorkers::STOP);
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(rank, 0, 15, true);
  job.StopAll();
  ExpectStopped(job, 143);
}

TEST(Stop, WhileTrainingWritesACheckpointAtTheLargestEdge) {
  CoreHarness job;
  job.Start();
  job.ReadyAll();
  job.Ask(R::STOP, 15);
  EXPECT_TRUE(job.LastSent("b", C::kEdgeRequest)->edge_request().stop());
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(job.LastSent("a", C::kCheckpointAt), nullptr);
    job.Edge(rank, rank == 2 ? 8 : 7);
  }
  ASSERT_NE(job.LastSent("a", C::kCheckpointAt), nullptr);
  EXPECT_EQ(job.LastSent("a", C::kCheckpointAt)->checkpoint_at().step(), 8u);
  EXPECT_TRUE(job.LastSent("a", C::kCheckpointAt)->checkpoint_at().stop());
  for (uint32_t rank = 0; rank < 4; ++rank) job.Checkpoint(rank, 8, v1::CheckpointFact::WRITTEN);
  job.Stored(true);
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(rank, 0);
  job.StopAll();
  ExpectStopped(job, 143);
  EXPECT_EQ(job.state.committed_step, 8u);
}

TEST(Stop, IsAKillWhenTheGraceIsOver) {
  CoreHarness job;
  job.Start();
  job.ReadyAll();
  job.Ask(R::STOP, 15);
  job.Edge(0, 7);  // the others hang
  job.Pass(29);
  EXPECT_EQ(job.LastSent("a", C::kStopWorkers), nullptr);
  job.Pass(1.1);
  EXPECT_EQ(job.LastSent("a", C::kStopWorkers)->stop_workers().mode(), v1::StopWorkers::KILL);
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(rank, 0, 9, true);
  job.StopAll();
  ExpectStopped(job, 143);
}

// S24.
TEST(Stop, ThatIsFollowedByAKillEndsAtOnce) {
  CoreHarness job;
  job.Start();
  job.ReadyAll();
  job.Ask(R::STOP, 2);
  job.Ask(R::KILL, 2);
  EXPECT_EQ(job.LastSent("b", C::kStopWorkers)->stop_workers().mode(), v1::StopWorkers::KILL);
  job.StopAll();
  ExpectStopped(job, 130);
}

TEST(Stop, WhileAFailedGenerationEndsSchedulesNoRestart) {
  CoreHarness job;
  job.Start();
  job.Exit(1, 5);
  ASSERT_EQ(job.state.phase, Phase::kStopping);
  job.Ask(R::STOP, 15);
  job.StopAll();
  ExpectStopped(job, 143);
  EXPECT_EQ(job.Count("restart_scheduled"), 0);
}

TEST(Stop, WhileAFailedGenerationEndsCanBecomeAKill) {
  CoreHarness job;
  job.Start();
  job.Exit(1, 5);
  job.Ask(R::KILL, 2);
  EXPECT_EQ(job.LastSent("a", C::kStopWorkers)->stop_workers().mode(), v1::StopWorkers::KILL);
  job.StopAll();
  ExpectStopped(job, 130);
}

TEST(Stop, WhileARestartIsDue) {
  CoreHarness job;
  job.Start();
  job.FailGeneration();
  job.Choose();
  job.FailGeneration();
  ASSERT_EQ(job.state.phase, Phase::kBackingOff);
  job.Ask(R::STOP, 0);
  ExpectStopped(job, 0);  // `ddprun stop`
}

TEST(Stop, WinsOverAFailureThatComesMeanwhile) {
  CoreHarness job;
  job.Start();
  job.ReadyAll();
  job.Ask(R::STOP, 15);
  job.FailGeneration();
  ExpectStopped(job, 143);
  EXPECT_EQ(job.state.failures.size(), 1u);
}

TEST(Stop, AfterTheEndChangesNothing) {
  CoreHarness job;
  job.Start();
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(rank, 0);
  job.StopAll();
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->status, "succeeded");
  job.Ask(R::STOP, 15);
  EXPECT_EQ(job.outcome->status, "succeeded");
  EXPECT_EQ(job.Count("job_finished"), 1);
}

// A stop that comes while a checkpoint is being agreed has its own turn after it.
TEST(Stop, WaitsForAnAgreementThatIsUnderWay) {
  CoreHarness job;
  job.Start();
  job.ReadyAll();
  job.Ask(R::CHECKPOINT);
  job.Edge(0, 3);
  job.Ask(R::STOP, 15);
  EXPECT_EQ(job.CountSent("a", C::kEdgeRequest), 1);
  for (uint32_t rank = 1; rank < 4; ++rank) job.Edge(rank, 3);
  EXPECT_FALSE(job.LastSent("a", C::kCheckpointAt)->checkpoint_at().stop());
  EXPECT_EQ(job.CountSent("a", C::kEdgeRequest), 2);
  EXPECT_TRUE(job.LastSent("a", C::kEdgeRequest)->edge_request().stop());
}

}  // namespace
}  // namespace ddprun::coordinator
