// The deadlines of start-up and of the whole run, and where the time goes (L65, S26; accounting.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/coordinator/accounting.h"
#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using testing::HasSubstr;

void Ready(CoreHarness& job, uint32_t rank) {
  v1::AgentMessage message;
  message.mutable_worker_ready()->set_generation(job.state.generation.number);
  message.mutable_worker_ready()->set_rank(rank);
  job.Say(job.NodeOf(rank), message);
}

void Started(CoreHarness& job) {
  for (uint32_t rank = 0; rank < job.state.generation.workers.size(); ++rank) {
    v1::AgentMessage message;
    message.mutable_worker_started()->set_generation(job.state.generation.number);
    message.mutable_worker_started()->set_rank(rank);
    job.Say(job.NodeOf(rank), message);
  }
}

// L65, S26: the trainer's ranks have to be ready in time; the one that is not is named.
TEST(InitTimeout, EndsAGenerationWhoseRanksAreNotReady) {
  CoreHarness job;
  job.spec.mutable_supervision()->set_init_timeout_seconds(20);
  job.Start();
  for (uint32_t rank : {0, 1, 3}) Ready(job, rank);
  job.Pass(19);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  job.Pass(22);  // nobody answers the examination
  EXPECT_EQ(job.state.phase, Phase::kStopping);
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(rank, 1, 0, true);
  job.StopAll();
  EXPECT_EQ(job.Event("generation_ended")["cause"], "init_timeout");
  EXPECT_EQ(job.Event("generation_ended")["rank"], 2);
  EXPECT_THAT(std::string(job.Event("generation_ended")["reason"]),
              HasSubstr("not ready within 20 s: rank 2 (node b)"));
}

TEST(InitTimeout, IsOverWhenAllAreReady) {
  CoreHarness job;
  job.spec.mutable_supervision()->set_init_timeout_seconds(20);
  job.Start();
  job.Pass(10);
  job.ReadyAll();
  job.Pass(100);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
}

// A plain program never says Ready; one that uses libddprun is held to it by its first rank.
TEST(InitTimeout, BeginsForAProgramWithItsFirstReadyRank) {
  CoreHarness job;
  job.spec.clear_train_config_json();
  job.spec.mutable_supervision()->set_init_timeout_seconds(20);
  job.Start();
  job.Pass(500);
  ASSERT_EQ(job.state.phase, Phase::kRunning);
  Ready(job, 0);
  job.Pass(19);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  job.Pass(22);
  EXPECT_EQ(job.state.phase, Phase::kStopping);
}

// --time-limit: a stop as for a signal, with a checkpoint where there can be one; 124.
TEST(TimeLimit, StopsWithACheckpointAnd124) {
  CoreHarness job;
  job.spec.set_time_limit_seconds(100);
  job.Start();
  job.ReadyAll();
  job.Pass(99);
  EXPECT_EQ(job.CountSent("a", v1::CoordinatorMessage::kEdgeRequest), 0);
  job.Pass(1);
  EXPECT_EQ(job.CountSent("a", v1::CoordinatorMessage::kEdgeRequest), 1);
  for (uint32_t rank = 0; rank < 4; ++rank) job.Edge(rank, 5);
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(rank, 0);
  job.StopAll();
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->status, "stopped");
  EXPECT_EQ(job.outcome->exit_code, 124);
  EXPECT_THAT(job.outcome->reason, HasSubstr("time limit of 100 s"));
}

TEST(TimeLimit, EndsAJobThatWaits) {
  CoreHarness job;
  job.spec.set_time_limit_seconds(30);
  job.Submit();
  job.Pass(31);
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->exit_code, 124);
}

// Who hurries the stop on does not change what it was.
TEST(TimeLimit, StaysTheReasonWhenSomebodyKills) {
  CoreHarness job;
  job.spec.clear_train_config_json();
  job.spec.set_time_limit_seconds(10);
  job.Start();
  job.Pass(11);
  job.Ask(v1::ControlRequest::KILL, 2);
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(rank, 0, 9, true);
  job.StopAll();
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->exit_code, 124);
}

// A plain program: from the failure until all of the next generation run.
TEST(Accounting, OfAPlainProgramIsTheTimeUntilAllRunAgain) {
  CoreHarness job;
  job.spec.clear_train_config_json();
  job.Start();
  Started(job);
  job.Pass(60);
  job.Exit(1, 0, 9);
  job.Pass(2);
  job.StopAll();
  job.Pass(3);
  job.Choose();
  Started(job);
  EXPECT_DOUBLE_EQ(job.Event("worker_started")["time_lost_s"], 5);
  EXPECT_EQ(job.Event("worker_started")["lost_to"], "signal");
  EXPECT_DOUBLE_EQ(job.state.failures[0].time_lost_seconds, 5);
  job.Pass(35);
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(rank, 0);
  job.StopAll();
  ASSERT_TRUE(job.outcome);
  EXPECT_DOUBLE_EQ(job.state.accounts.lost_seconds, 5);
  EXPECT_DOUBLE_EQ(job.state.accounts.lost_by_cause.at("signal"), 5);
  EXPECT_DOUBLE_EQ(Goodput(job.state), 0.95);
}

// Steps: the gap between the last and the first, and the steps that are done again.
TEST(Accounting, OfStepsCountsThoseThatAreDoneAgain) {
  CoreHarness job;
  job.Start();
  job.ReadyAll();
  for (uint64_t step = 1; step <= 11; ++step) {
    job.Pass(1);
    job.Progress(step);
  }
  job.Pass(0.5);
  job.FailGeneration();
  job.Choose();
  job.Pass(3.5);
  job.Progress(6);
  EXPECT_NEAR(job.Event("training_progressed")["time_lost_s"].get<double>(), 4 + 5, 1e-6);
  EXPECT_EQ(job.Event("training_progressed")["lost_to"], "signal");
}

// A generation that never gets to work is in vain as a whole, and the job's end closes the account.
TEST(Accounting, CountsGenerationsThatCompleteNoStep) {
  CoreHarness job;
  job.spec.mutable_restart()->set_max_restarts(1);
  job.Start();
  job.ReadyAll();
  job.Progress(1);
  job.Pass(10);
  job.FailGeneration();  // 10 s since the last step
  job.Choose();
  job.Pass(7);
  job.Exit(0, 3);  // no step
  job.Pass(2);
  job.StopAll();
  ASSERT_TRUE(job.outcome);
  EXPECT_NEAR(job.state.failures[0].time_lost_seconds, 10, 1e-6);
  EXPECT_NEAR(job.state.failures[1].time_lost_seconds, 9, 1e-6);
  EXPECT_NEAR(job.state.accounts.lost_by_cause.at("worker_error"), 9, 1e-6);
  EXPECT_NEAR(job.Event("job_finished")["time_lost_s"].get<double>(), 9, 1e-6);
}

}  // namespace
}  // namespace ddprun::coordinator
