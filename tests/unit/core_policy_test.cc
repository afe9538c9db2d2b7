// Whether a failed generation is followed by another (restart_policy.h), by table and by whole
// jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/coordinator/restart_policy.h"
#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

v1::RestartPolicy Policy() {
  return CoreHarness().spec.restart();
}

struct Row {
  const char* name;
  History history;
  FailureRecord failure;
  bool budget_given = true;
  DecisionReason reason;
  int32_t exit_code = 0;
  const char* failure_kind = "";
};

class PolicyTable : public testing::TestWithParam<Row> {};

TEST_P(PolicyTable, Decides) {
  const Row& row = GetParam();
  v1::RestartPolicy policy = Policy();
  policy.set_max_restarts_given(row.budget_given);
  const Decision decision = DecideAfterFailure(policy, row.history, row.failure, 0);
  EXPECT_EQ(decision.reason, row.reason);
  EXPECT_EQ(decision.restart, row.reason == DecisionReason::kRestart);
  EXPECT_EQ(decision.exit_code, row.exit_code);
  EXPECT_EQ(decision.failure_kind, row.failure_kind);
  EXPECT_NE(decision.text, "");
}

INSTANTIATE_TEST_SUITE_P(
    Rows, PolicyTable,
    testing::Values(
        Row{"WithinBudget",
            {.restarts_charged = 2},
            {.exit_code = 7},
            true,
            DecisionReason::kRestart},
        Row{"BudgetUsed",
            {.restarts_charged = 3},
            {.exit_code = 7},
            true,
            DecisionReason::kBudgetUsed,
            7,
            "worker_failed"},
        Row{"BudgetUsedBySignal",
            {.restarts_charged = 3},
            {.signal = 9},
            true,
            DecisionReason::kBudgetUsed,
            137,
            "worker_failed"},
        Row{"BudgetUsedByLostNode",
            {.restarts_charged = 3},
            {.cause = Cause::kNodeLost},
            true,
            DecisionReason::kBudgetUsed,
            4,
            "node_lost"},
        Row{"NobodyToBlame",
            {.restarts_charged = 3},
            {},
            true,
            DecisionReason::kBudgetUsed,
            1,
            "worker_failed"},
        // L23: three failures before the start end it early, unless a number was asked for.
        Row{"CrashLoop",
            {.restarts_charged = 2, .start_failures_in_a_row = 3},
            {.exit_code = 2, .before_start = true},
            false,
            DecisionReason::kCrashLoop,
            2,
            "worker_failed"},
        Row{"CrashLoopWithBudgetGiven",
            {.restarts_charged = 2, .start_failures_in_a_row = 3},
            {.exit_code = 2, .before_start = true},
            true,
            DecisionReason::kRestart},
        Row{"TwoFailuresAreNoCrashLoop",
            {.restarts_charged = 1, .start_failures_in_a_row = 2},
            {.exit_code = 2, .before_start = true},
            false,
            DecisionReason::kRestart},
        // D8: restarts that commit nothing.
        Row{"NoProgress",
            {.restarts_charged = 1, .restarts_without_commit = 3, .any_commit = true},
            {.exit_code = 7},
            true,
            DecisionReason::kNoProgress,
            93,
            "no_progress"},
        Row{"NothingWasEverCommitted",
            {.restarts_charged = 1, .restarts_without_commit = 3, .any_commit = false},
            {.exit_code = 7},
            true,
            DecisionReason::kRestart},
        Row{"ConfigurationError",
            {},
            {.exit_code = 2, .config = true},
            true,
            DecisionReason::kConfigError,
            2,
            "worker_failed"},
        Row{"CannotBeStarted",
            {},
            {.cause = Cause::kStartFailed},
            true,
            DecisionReason::kStartFailed,
            127,
            "start_failed"}),
    [](const auto& row) { return row.param.name; });

// D8, S17: the first restart at once, then after the base, doubling up to the maximum.
TEST(Backoff, BeginsAtOnceThenDoublesUpToTheMaximum) {
  const double expected[] = {0, 2, 4, 8, 16, 32, 60, 60};
  for (uint32_t failures = 1; failures <= 8; ++failures) {
    History history{.failures_in_a_row = failures};
    const Decision decision = DecideAfterFailure(Policy(), history, {.exit_code = 1}, 0);
    EXPECT_EQ(static_cast<double>(decision.delay_ns) / kSecondNs, expected[failures - 1]);
  }
}

// S17: progress between failures makes the next restart an immediate one again.
TEST(Backoff, ForgetsFailuresOnceTheJobHasGoneFurther) {
  CoreHarness job;
  job.Start();
  job.FailGeneration();
  EXPECT_EQ(job.Event("restart_scheduled")["delay_seconds"], 0.0);
  job.Choose();
  job.FailGeneration();
  EXPECT_EQ(job.Event("restart_scheduled")["delay_seconds"], 2.0);
  EXPECT_EQ(job.state.phase, Phase::kBackingOff);
  job.Pass(2);
  job.Choose();
  job.ReadyAll();
  job.Progress(5);
  job.FailGeneration();
  EXPECT_EQ(job.Event("restart_scheduled")["delay_seconds"], 0.0);
}

// S17: a crash after the minimum uptime is no crash loop.
TEST(Backoff, ForgetsFailuresAfterTheMinimumUptime) {
  CoreHarness job;
  job.Start();
  job.FailGeneration();
  job.Choose();
  job.Pass(31);
  job.FailGeneration();
  EXPECT_EQ(job.Event("restart_scheduled")["delay_seconds"], 0.0);
  EXPECT_EQ(job.state.history.start_failures_in_a_row, 0u);
}

// R2: one budget for the job, wherever the failures come from; it ends at exactly that number.
TEST(Budget, IsExactWhenFailuresAlternateBetweenNodes) {
  CoreHarness job;
  job.Start();
  for (uint32_t restarts = 1; restarts <= 3; ++restarts) {
    job.FailGeneration(restarts % 2 == 0 ? 0 : 3);
    ASSERT_FALSE(job.outcome);
    EXPECT_EQ(job.Event("restart_scheduled")["restarts_used"], restarts);
    job.Pass(20);
    job.Choose();
  }
  job.FailGeneration(2);
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->status, "failed");
  EXPECT_EQ(job.outcome->exit_code, 137);
  EXPECT_EQ(job.state.generation.number, 4u);
}

// However many ranks die, a generation costs one.
TEST(Budget, ChargesOneForManyDeaths) {
  CoreHarness job;
  job.Start();
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(rank, 0, 9);
  job.StopAll();
  EXPECT_EQ(job.Count("restart_scheduled"), 1);
  EXPECT_EQ(job.state.history.restarts_charged, 1u);
}

// D8, L32: where checkpoints were committed, three restarts without a newer one end the job
// with 93.
TEST(NoProgress, EndsWith93AndForgetsWhenAStepIsCommitted) {
  CoreHarness job;
  job.spec.mutable_restart()->set_max_restarts(100);
  job.Start();
  for (int restart = 0; restart < 3; ++restart) {
    job.FailGeneration();
    job.Pass(60);
    job.Choose(10);
  }
  EXPECT_FALSE(job.outcome);
  // A commit: the count begins anew.
  for (uint32_t rank = 0; rank < 4; ++rank) job.Checkpoint(rank, 20, v1::CheckpointFact::WRITTEN);
  job.Stored(true);
  for (int restart = 0; restart < 3; ++restart) {
    job.FailGeneration();
    ASSERT_FALSE(job.outcome) << restart;
    job.Pass(60);
    job.Choose(20);
  }
  job.FailGeneration();
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->exit_code, 93);
  EXPECT_EQ(job.outcome->failure_kind, "no_progress");
}

// L23: the worker's own code is kept.
TEST(CrashLoop, EndsAfterThreeFailuresBeforeTheStart) {
  CoreHarness job;
  job.spec.mutable_restart()->set_max_restarts_given(false);
  job.Start();
  for (int failure = 0; failure < 3; ++failure) {
    ASSERT_FALSE(job.outcome);
    job.Exit(1, 3);
    job.StopAll();
    if (failure < 2) job.Pass(20);
    if (failure < 2) job.Choose();
  }
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->exit_code, 3);
  EXPECT_THAT(job.outcome->reason, testing::HasSubstr("3 times in a row"));
}

TEST(ConfigError, EndsAtOnce) {
  CoreHarness job;
  job.Start();
  job.Fail(2, v1::WorkerFailed::CONFIG);
  job.Exit(2, 2);
  job.StopAll();
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->exit_code, 2);
  EXPECT_EQ(job.Count("restart_scheduled"), 0);
}

}  // namespace
}  // namespace ddprun::coordinator
