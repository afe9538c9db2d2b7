// Checkpoints in the coordinator's core: what is committed, what is dropped, and what late words
// do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using C = v1::CoordinatorMessage;
using F = v1::CheckpointFact;

const v1::CheckpointSettled& Settled(const CoreHarness& job, const std::string& node) {
  static const v1::CheckpointSettled kNone;
  const C* message = job.LastSent(node, C::kCheckpointSettled);
  return message == nullptr ? kNone : message->checkpoint_settled();
}

class CoreCheckpoint : public testing::Test {
 protected:
  CoreCheckpoint() {
    job_.Start();
    job_.ReadyAll();
  }
  void All(uint64_t step, F::What what) {
    for (uint32_t rank = 0; rank < 4; ++rank) job_.Checkpoint(rank, step, what);
  }
  CoreHarness job_;
};

TEST_F(CoreCheckpoint, IsCommittedWhenEveryRankHasWritten) {
  All(10, F::STARTED);
  for (uint32_t rank = 0; rank < 3; ++rank) job_.Checkpoint(rank, 10, F::WRITTEN);
  EXPECT_FALSE(job_.committing);
  job_.Checkpoint(3, 10, F::WRITTEN);
  ASSERT_TRUE(job_.committing);
  EXPECT_EQ(job_.committing->generation, 1u);
  EXPECT_EQ(job_.committing->world_size, 4u);
  EXPECT_EQ(job_.committing->files.size(), 4u);
  EXPECT_EQ(job_.Count("checkpoint_committed"), 0);  // not before it is durable
  job_.Stored(true);
  EXPECT_EQ(job_.Event("checkpoint_committed")["step"], 10);
  EXPECT_TRUE(Settled(job_, "b").committed());
  EXPECT_EQ(job_.state.committed_step, 10u);
}

TEST_F(CoreCheckpoint, IsDroppedEverywhereWhenOneRankCannotWrite) {
  All(10, F::STARTED);
  job_.Checkpoint(0, 10, F::WRITTEN);
  job_.Checkpoint(2, 10, F::FAILED);
  EXPECT_EQ(job_.Count("checkpoint_failed"), 1);
  EXPECT_THAT(std::string(job_.Event("checkpoint_failed")["reason"]),
              testing::HasSubstr("rank 2: no space"));
  for (const char* node : {"a", "b"}) {
    EXPECT_EQ(Settled(job_, node).step(), 10u);
    EXPECT_FALSE(Settled(job_, node).committed());
  }
  EXPECT_EQ(job_.dropped_stagings, 1);
}

// Simulator seed 1548: ranks that had not heard of the drop began the step again, and dropped the
// next one.
TEST_F(CoreCheckpoint, ThatWasDroppedIsNotBegunAgainByLateRanks) {
  job_.Checkpoint(0, 10, F::STARTED);
  job_.Checkpoint(0, 10, F::FAILED);
  job_.Checkpoint(3, 10, F::STARTED);
  job_.Checkpoint(3, 10, F::WRITTEN);
  EXPECT_EQ(job_.Count("checkpoint_started"), 1);
  All(20, F::STARTED);
  job_.Checkpoint(1, 10, F::WRITTEN);  // later still
  All(20, F::WRITTEN);
  ASSERT_TRUE(job_.committing);
  EXPECT_EQ(job_.committing->step, 20u);
  EXPECT_EQ(job_.Count("checkpoint_failed"), 1);
}

// A rank that is behind does not undo the step that the others write; one that is ahead ends it.
TEST_F(CoreCheckpoint, GivesWayOnlyToALaterStep) {
  job_.Checkpoint(0, 20, F::STARTED);
  job_.Checkpoint(3, 10, F::STARTED);
  EXPECT_EQ(job_.Count("checkpoint_failed"), 0);
  EXPECT_EQ(Settled(job_, "b").step(), 10u);
  EXPECT_FALSE(Settled(job_, "b").committed());
  job_.Checkpoint(1, 30, F::STARTED);
  EXPECT_EQ(job_.Event("checkpoint_failed")["step"], 20);
  EXPECT_EQ(job_.Event("checkpoint_started")["step"], 30);
}

TEST_F(CoreCheckpoint, IsVetoedEvenWhileTheOneBeforeIsCommitted) {
  All(10, F::WRITTEN);
  job_.Checkpoint(2, 12, F::FAILED);
  job_.Stored(true);
  job_.Checkpoint(0, 12, F::STARTED);
  EXPECT_EQ(job_.Event("checkpoint_failed")["step"], 12);
  EXPECT_FALSE(Settled(job_, "a").committed());
}

// However often it is asked for while one is on its way, one more follows; and later ones as well.
TEST_F(CoreCheckpoint, OnDemandIsAgreedEachTimeOneIsOver) {
  const auto agree = [this](uint64_t step) {
    for (uint32_t rank = 0; rank < 4; ++rank) job_.Edge(rank, step);
  };
  job_.Ask(v1::ControlRequest::CHECKPOINT);
  agree(3);
  job_.Ask(v1::ControlRequest::CHECKPOINT);
  job_.Ask(v1::ControlRequest::CHECKPOINT);
  EXPECT_EQ(job_.CountSent("a", C::kEdgeRequest), 1);
  All(3, F::WRITTEN);
  job_.Stored(true);
  EXPECT_EQ(job_.CountSent("a", C::kEdgeRequest), 2);
  agree(5);
  All(5, F::WRITTEN);
  job_.Stored(false);
  EXPECT_EQ(job_.CountSent("a", C::kEdgeRequest), 2);
  job_.Ask(v1::ControlRequest::CHECKPOINT);
  EXPECT_EQ(job_.CountSent("a", C::kEdgeRequest), 3);
  // The periodic checkpoint of that very step is over before its edges have come.
  All(7, F::WRITTEN);
  job_.Stored(true);
  agree(7);
  job_.Ask(v1::ControlRequest::CHECKPOINT);
  EXPECT_EQ(job_.CountSent("a", C::kEdgeRequest), 4);
}

TEST_F(CoreCheckpoint, ThatIsLeftOutIsAnEventAndNothingElse) {
  All(10, F::STARTED);
  job_.Checkpoint(0, 20, F::SKIPPED);
  EXPECT_EQ(job_.Event("checkpoint_skipped")["step"], 20);
  All(10, F::WRITTEN);
  ASSERT_TRUE(job_.committing);
  EXPECT_EQ(job_.committing->step, 10u);
}

TEST_F(CoreCheckpoint, ThatCannotBeCommittedIsDroppedAndTheJobGoesOn) {
  All(10, F::WRITTEN);
  job_.Stored(false);
  EXPECT_EQ(job_.Event("checkpoint_failed")["reason"], "no space");
  EXPECT_FALSE(Settled(job_, "a").committed());
  EXPECT_EQ(job_.state.committed_step, 0u);
  EXPECT_EQ(job_.state.phase, Phase::kRunning);
  All(20, F::WRITTEN);
  job_.Stored(true);
  EXPECT_EQ(job_.state.committed_step, 20u);
}

TEST_F(CoreCheckpoint, OfAGenerationThatEndsIsDropped) {
  job_.Checkpoint(0, 10, F::WRITTEN);
  job_.FailGeneration();
  EXPECT_EQ(job_.Count("checkpoint_failed"), 1);
  EXPECT_FALSE(job_.committing);
}

// The next generation resumes from it, so it waits for the disk.
TEST_F(CoreCheckpoint, ThatIsBeingCommittedIsAwaitedBeforeTheNextGeneration) {
  All(10, F::WRITTEN);
  job_.FailGeneration();
  EXPECT_EQ(job_.state.phase, Phase::kStopping);
  job_.Stored(true);
  EXPECT_EQ(job_.state.phase, Phase::kChoosing);
  job_.Choose(10);
  EXPECT_EQ(job_.LastSent("a", C::kStartWorkers)->start_workers().resume_step(), 10u);
}

// C1: a damaged newest one is told, and the one before is used by every rank.
TEST_F(CoreCheckpoint, ThatIsRejectedTakesTheCommittedStepBack) {
  All(20, F::WRITTEN);
  job_.Stored(true);
  job_.FailGeneration();
  job_.Choose(10, {{20, "step-20.bad-g2", "damaged"}});
  EXPECT_EQ(job_.Event("checkpoint_rejected")["step"], 20);
  for (const char* node : {"a", "b"}) {
    EXPECT_EQ(job_.LastSent(node, C::kStartWorkers)->start_workers().resume_step(), 10u);
  }
  EXPECT_EQ(job_.state.committed_step, 10u);
  All(20, F::WRITTEN);
  job_.Stored(true);
  EXPECT_EQ(job_.state.committed_step, 20u);
}

// A generation that resumes from the last step writes it again: simulator seed 6694 waited for
// ever.
TEST_F(CoreCheckpoint, OfAStepThatIsCommittedAlreadyIsAnswered) {
  All(20, F::WRITTEN);
  job_.Stored(true);
  job_.FailGeneration();
  job_.Choose(20);
  job_.ReadyAll();
  job_.Clear();
  job_.Checkpoint(0, 20, F::STARTED);
  job_.Checkpoint(0, 20, F::WRITTEN);
  EXPECT_TRUE(Settled(job_, "a").committed());
  job_.Checkpoint(3, 20, F::FAILED);
  EXPECT_EQ(Settled(job_, "b").step(), 20u);
  EXPECT_FALSE(Settled(job_, "b").committed());
  EXPECT_FALSE(job_.committing);
  EXPECT_EQ(job_.Count("checkpoint_started"), 0);
}

}  // namespace
}  // namespace ddprun::coordinator
