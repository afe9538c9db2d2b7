// Which codes are restarted, what counts against the budget, and what ddprun's own code is (L30,
// L33, L56, L60, S5, S14).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/coordinator/restart_policy.h"
#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using testing::HasSubstr;

v1::RestartPolicy Policy() {
  return CoreHarness().spec.restart();
}

FailureRecord Exited(int32_t code, int32_t signal = 0) {
  return {.exit_code = code,
          .signal = signal,
          .cause = signal != 0 ? Cause::kSignal : Cause::kWorkerError};
}

bool Restarts(const v1::RestartPolicy& policy, const FailureRecord& failure) {
  return DecideAfterFailure(policy, History{}, failure, 0).restart;
}

// L30: a code that is named is never restarted; a signal is 128 + its number.
TEST(Codes, NamedByNoRestartOnAreNotRestarted) {
  v1::RestartPolicy policy = Policy();
  policy.add_no_restart_on(85);
  policy.add_no_restart_on(137);
  EXPECT_FALSE(Restarts(policy, Exited(85)));
  EXPECT_FALSE(Restarts(policy, Exited(0, 9)));
  EXPECT_TRUE(Restarts(policy, Exited(86)));
  EXPECT_TRUE(Restarts(policy, Exited(0, 11)));
  const Decision decision = DecideAfterFailure(policy, History{}, Exited(85), 0);
  EXPECT_EQ(decision.reason, DecisionReason::kCode);
  EXPECT_EQ(decision.exit_code, 85);
  EXPECT_THAT(decision.text, HasSubstr("--no-restart-on"));
}

// L30: with --restart-on nothing else is restarted, but what is no worker's end still is.
TEST(Codes, NotNamedByRestartOnAreNotRestarted) {
  v1::RestartPolicy policy = Policy();
  policy.add_restart_on(139);
  EXPECT_TRUE(Restarts(policy, Exited(0, 11)));
  EXPECT_FALSE(Restarts(policy, Exited(1)));
  EXPECT_TRUE(Restarts(policy, {.cause = Cause::kNodeLost}));
  EXPECT_TRUE(Restarts(policy, {.exit_code = 1, .cause = Cause::kHang}));
  EXPECT_TRUE(Restarts(policy, {.exit_code = 1, .cause = Cause::kPortCollision}));
}

// L30: a worker's own 93 keeps the code, and the kind tells it from ddprun's.
TEST(Codes, OfAWorkerMayBe93) {
  v1::RestartPolicy policy = Policy();
  policy.add_no_restart_on(93);
  const Decision decision = DecideAfterFailure(policy, History{}, Exited(93), 0);
  EXPECT_EQ(decision.exit_code, 93);
  EXPECT_EQ(decision.failure_kind, "worker_failed");
}

// L60: --exit-code-map changes ddprun's code; the worker's is kept beside it.
TEST(ExitCodeMap, GivesDdprunAnotherCodeThanTheWorkers) {
  CoreHarness job;
  job.spec.mutable_restart()->set_max_restarts(0);
  (*job.spec.mutable_supervision()->mutable_exit_code_map())[139] = 85;
  job.Start();
  job.Exit(1, 0, 11);
  job.StopAll();
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->exit_code, 85);
  EXPECT_EQ(job.outcome->worker_exit_code, 139);
}

// S5: without a map the worker's code is ddprun's.
TEST(ExitCodeMap, LeavesOtherCodesAsTheyAre) {
  for (const auto& [code, signal, expected] :
       {std::tuple{1, 0, 1}, {7, 0, 7}, {85, 0, 85}, {0, 9, 137}, {0, 11, 139}, {0, 6, 134}}) {
    CoreHarness job;
    job.spec.mutable_restart()->set_max_restarts(0);
    (*job.spec.mutable_supervision()->mutable_exit_code_map())[3] = 4;
    job.Start();
    job.Exit(1, code, signal);
    job.StopAll();
    ASSERT_TRUE(job.outcome);
    EXPECT_EQ(job.outcome->exit_code, expected);
    EXPECT_EQ(job.outcome->worker_exit_code, expected);
  }
}

// L33: thirty days with one failure a day do not use up three restarts an hour; four in an hour do.
TEST(RestartWindow, ForgetsOldFailures) {
  CoreHarness job;
  job.spec.mutable_restart()->set_window_seconds(3600);
  job.spec.set_lease_seconds(0);
  job.Start();
  for (int day = 0; day < 30; ++day) {
    job.now_ns += 86400 * kSecondNs;
    job.Progress(static_cast<uint64_t>(day) + 1);
    job.FailGeneration();
    ASSERT_FALSE(job.outcome) << "day " << day;
    EXPECT_EQ(job.Event("restart_scheduled")["restarts_used"], 1);
    job.Choose();
  }
  EXPECT_EQ(job.state.history.restarts_charged, 30u);
  EXPECT_LE(job.state.history.charged_ns.size(), 1u);
  job.Pass(7200);
  for (int failure = 0; failure < 4; ++failure) {
    ASSERT_FALSE(job.outcome);
    job.FailGeneration();
    job.Pass(60);
    if (job.choosing) job.Choose();
  }
  ASSERT_TRUE(job.outcome);
  EXPECT_THAT(job.outcome->reason, HasSubstr("of the last 3600 s"));
}

void Collide(CoreHarness& job) {
  job.Fail(0, v1::WorkerFailed::PORT_COLLISION);
  job.Exit(0, 1);
  job.StopAll();
}

// L56, S14: a port that was taken costs nothing, and the next generation comes at once.
TEST(PortCollision, IsFreeOfCharge) {
  CoreHarness job;
  job.spec.mutable_restart()->set_max_restarts(0);
  job.spec.mutable_restart()->set_free_restarts_limit(100);
  job.Start();
  Collide(job);
  ASSERT_FALSE(job.outcome);
  const auto event = job.Event("restart_scheduled");
  EXPECT_EQ(event["free"], true);
  EXPECT_EQ(event["restarts_used"], 0);
  EXPECT_EQ(event["delay_seconds"], 0.0);
  EXPECT_EQ(job.Event("generation_ended")["cause"], "port_collision");
  EXPECT_TRUE(job.choosing);
  EXPECT_EQ(job.state.history.restarts_free, 1u);
  EXPECT_EQ(job.state.history.restarts_without_commit, 0u);
}

// L56: what only the log of a plain program tells is believed, too.
TEST(PortCollision, IsSeenInTheLogOfAPlainProgram) {
  CoreHarness job;
  job.spec.clear_train_config_json();
  job.spec.mutable_restart()->set_free_restarts_limit(100);
  job.Start();
  v1::AgentMessage message;
  auto* exited = message.mutable_worker_exited();
  exited->set_generation(1);
  exited->set_exit_code(1);
  exited->set_hint(v1::HINT_PORT_COLLISION);
  job.Say("a", message);
  job.StopAll();
  EXPECT_EQ(job.Event("restart_scheduled")["free"], true);
}

// L56: free restarts have a limit of their own; beyond it they cost.
TEST(PortCollision, CostsWhenFreeRestartsAreUsedUp) {
  CoreHarness job;
  job.spec.mutable_restart()->set_max_restarts(1);
  job.spec.mutable_restart()->set_free_restarts_limit(5);
  job.Start();
  for (int collision = 1; collision <= 6; ++collision) {
    ASSERT_FALSE(job.outcome);
    Collide(job);
    EXPECT_EQ(job.Event("restart_scheduled").contains("free"), collision <= 5) << collision;
    job.Pass(100);  // from the fourth in a row on, with back-off
    job.Choose();
  }
  EXPECT_EQ(job.state.history.restarts_charged, 1u);
  Collide(job);
  ASSERT_TRUE(job.outcome);
  EXPECT_EQ(job.outcome->failure_kind, "worker_failed");
}

}  // namespace
}  // namespace ddprun::coordinator
