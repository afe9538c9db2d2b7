// What a failure's record says: causes, secondary ranks, groups, error reports (L62, L63, S6, S20).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/root_cause.h"
#include "tests/unit/core_harness.h"

namespace ddprun::coordinator {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;

// A plain program in four ranks on one node.
class CauseTest : public testing::Test {
 protected:
  explicit CauseTest(bool trainer = false) : job_(1) {
    if (!trainer) job_.spec.clear_train_config_json();
    job_.spec.set_processes_per_node(4);
    job_.Start();
    t_ = job_.now_ns;
  }
  v1::WorkerExited End(uint32_t rank, int32_t code, int32_t signal, int64_t after_ms) const {
    v1::WorkerExited exited;
    exited.set_generation(1);
    exited.set_rank(rank);
    exited.set_exit_code(code);
    exited.set_signal(signal);
    exited.set_time_ns(t_ + after_ms * kMs);
    return exited;
  }
  // As NCCL's and PyTorch's ends after a peer's.
  v1::WorkerExited LosesPeer(uint32_t rank, int64_t after_ms) const {
    v1::WorkerExited exited = End(rank, 0, 6, after_ms);
    exited.set_hint(v1::HINT_COMMUNICATION);
    exited.add_log_tail("[rank" + std::to_string(rank) + "]: NCCL error: remote process exited");
    return exited;
  }
  void Say(const v1::WorkerExited& exited) {
    v1::AgentMessage message;
    *message.mutable_worker_exited() = exited;
    job_.Say("a", message);
  }
  const FailureRecord& Failure() {
    job_.StopAll();
    return job_.state.failures.at(0);
  }
  CoreHarness job_;
  int64_t t_ = 0;
};

// The same with the built-in trainer.
class TrainerCauseTest : public CauseTest {
 protected:
  TrainerCauseTest() : CauseTest(/*trainer=*/true) {}
};

// S6, L63: rank 2 raises; 0, 1 and 3 abort with NCCL-like text 20 to 300 ms around it.
TEST_F(CauseTest, IsTheRankThatRaisedWhoeverAbortedFirst) {
  Say(LosesPeer(0, -20));
  v1::WorkerExited raised = End(2, 1, 0, 0);
  raised.add_log_tail("ValueError: boom");
  Say(raised);
  Say(LosesPeer(1, 50));
  Say(LosesPeer(3, 300));
  const FailureRecord& failure = Failure();
  EXPECT_EQ(failure.rank, 2);
  EXPECT_EQ(failure.cause, Cause::kWorkerError);
  EXPECT_THAT(failure.log_tail, ElementsAre("ValueError: boom"));
  EXPECT_THAT(failure.secondary, ElementsAre(0, 1, 3));
}

// S6: one that lost a peer says that somebody else is dying: for a moment nobody is stopped, so
// that this one can show itself.
TEST_F(CauseTest, IsWaitedForWhenAPeerOfItEndsFirst) {
  Say(LosesPeer(0, -20));
  EXPECT_EQ(job_.state.phase, Phase::kRunning);
  job_.Pass(0.3);
  EXPECT_EQ(job_.CountSent("a", v1::CoordinatorMessage::kStopWorkers), 0);
  Say(End(2, 1, 0, 300));
  EXPECT_EQ(job_.state.phase, Phase::kStopping);
  EXPECT_EQ(Failure().rank, 2);
}

// L10, L28: it is a moment, not NCCL's timeout.
TEST_F(CauseTest, IsNotWaitedForLongerThanHalfASecond) {
  Say(LosesPeer(0, 0));
  job_.Pass(0.51);
  EXPECT_EQ(job_.state.phase, Phase::kStopping);
  EXPECT_EQ(job_.CountSent("a", v1::CoordinatorMessage::kStopWorkers), 1);
}

// Nobody is left to be waited for.
TEST_F(CauseTest, IsNotWaitedForWhenAllHaveEnded) {
  for (uint32_t rank = 0; rank < 4; ++rank) Say(LosesPeer(rank, rank));
  EXPECT_EQ(job_.state.phase, Phase::kStopping);
}

// S6: rank 2 was on its way out when rank 0's abort made us stop everybody.
TEST_F(CauseTest, IsTheRankThatWasDyingWhenTheOrderCame) {
  Say(LosesPeer(0, -20));
  v1::WorkerExited raised = End(2, 1, 0, 5);
  raised.set_stopped_by_us(true);
  Say(raised);
  v1::WorkerExited stopped = End(1, 0, 15, 2);  // by our TERM
  stopped.set_stopped_by_us(true);
  Say(stopped);
  const FailureRecord& failure = Failure();
  EXPECT_EQ(failure.rank, 2);
  EXPECT_EQ(failure.cause, Cause::kWorkerError);
}

// L62: what @record wrote is the rank's own report, with its time.
TEST_F(CauseTest, IsTheErrorReportWithTheEarliestTime) {
  v1::WorkerExited late = End(0, 1, 0, 100);
  late.mutable_error()->set_message("ValueError: second");
  late.mutable_error()->set_time_ns(t_ + 50 * kMs);
  Say(late);
  v1::WorkerExited early = End(3, 1, 0, 200);
  early.mutable_error()->set_message("KeyError: 'first'\nmore");
  early.mutable_error()->set_traceback("Traceback …");
  early.mutable_error()->set_time_ns(t_ + 10 * kMs);
  early.set_stopped_by_us(true);
  Say(early);
  const FailureRecord& failure = Failure();
  EXPECT_EQ(failure.rank, 3);
  EXPECT_EQ(failure.error_message, "KeyError: 'first'\nmore");
  EXPECT_EQ(failure.error_traceback, "Traceback …");
  EXPECT_EQ(failure.reason, "exited with code 1: KeyError: 'first'");
}

// L63: @record also writes down exceptions that only say that a peer is gone.
TEST_F(CauseTest, IsNotAnErrorReportAboutAPeer) {
  v1::WorkerExited lost = End(0, 1, 0, 0);
  lost.mutable_error()->set_message("torch.distributed.DistBackendError: NCCL error in: …");
  lost.mutable_error()->set_time_ns(t_ - 10 * kMs);
  lost.set_hint(v1::HINT_COMMUNICATION);
  Say(lost);
  Say(End(1, 0, 11, 20));
  const FailureRecord& failure = Failure();
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.cause, Cause::kSignal);
  EXPECT_THAT(failure.secondary, ElementsAre(0));
}

// L63: when nobody shows why, the text says so.
TEST_F(CauseTest, IsUnknownWhenAllOnlyLostEachOther) {
  Say(LosesPeer(3, 0));
  Say(LosesPeer(1, 10));
  job_.Pass(1);
  const FailureRecord& failure = Failure();
  EXPECT_EQ(failure.cause, Cause::kCommunicationUnknown);
  EXPECT_EQ(failure.rank, 3);
  EXPECT_THAT(failure.reason, HasSubstr("none of them shows why"));
  EXPECT_EQ(job_.Event("generation_ended")["cause"], "communication_unknown");
}

// S20: the limit stands in the reason.
TEST_F(CauseTest, IsTheKernelsOutOfMemoryKiller) {
  v1::WorkerExited killed = End(1, 0, 9, 0);
  killed.mutable_out_of_memory()->set_text("OOM-killed, limit 200 MiB (cgroup /job)");
  killed.set_hint(v1::HINT_COMMUNICATION);
  Say(killed);
  const FailureRecord& failure = Failure();
  EXPECT_EQ(failure.cause, Cause::kOutOfMemory);
  EXPECT_EQ(failure.reason, "was killed by SIGKILL: OOM-killed, limit 200 MiB (cgroup /job)");
}

// What takes less memory is known of the built-in trainer alone. Another process may have taken it,
// so it is tried again.
TEST_F(TrainerCauseTest, OutOfMemoryHasAdvice) {
  v1::WorkerExited killed = End(1, 0, 9, 0);
  killed.mutable_out_of_memory()->set_text("OOM-killed, limit 200 MiB (cgroup /job)");
  Say(killed);
  const FailureRecord& failure = Failure();
  EXPECT_THAT(failure.reason,
              AllOf(HasSubstr("limit 200 MiB (cgroup /job); `ddprun plan` shows how much memory"),
                    HasSubstr("a smaller data.batch_size")));
  EXPECT_FALSE(failure.config);
}

// Identical last words are told once, whatever rank PyTorch puts in front.
TEST_F(CauseTest, GroupsRanksWithTheSameLastWords) {
  for (uint32_t rank : {0, 1, 3}) Say(LosesPeer(rank, 10 + rank));
  v1::WorkerExited raised = End(2, 1, 0, 0);
  raised.add_log_tail("[rank2]: ValueError: boom");
  raised.add_log_tail("  ");
  Say(raised);
  const FailureRecord& failure = Failure();
  ASSERT_EQ(failure.groups.size(), 2u);
  EXPECT_THAT(failure.groups[0].ranks, ElementsAre(0, 1, 3));
  EXPECT_EQ(failure.groups[0].text, "NCCL error: remote process exited");
  EXPECT_THAT(failure.groups[1].ranks, ElementsAre(2));
  EXPECT_EQ(failure.groups[1].text, "ValueError: boom");
}

// L71: also those that were stopped while they were dying of the same error.
TEST_F(CauseTest, GroupsRanksThatWereOnTheirWayOutWhenTheyWereStopped) {
  for (uint32_t rank : {0, 1, 2, 3}) {
    v1::WorkerExited raised = End(rank, 1, 0, rank);
    raised.set_stopped_by_us(rank > 0);
    raised.add_log_tail(absl::StrCat("[rank", rank, "]: ValueError: boom"));
    Say(raised);
  }
  const FailureRecord& failure = Failure();
  ASSERT_EQ(failure.groups.size(), 1u);
  EXPECT_THAT(failure.groups[0].ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(failure.rank, 0);
}

TEST_F(CauseTest, CarriesCoreDumpsAndTheArtifactsOfAllRanks) {
  v1::WorkerExited crashed = End(1, 0, 11, 0);
  crashed.set_core_dump("/var/crash/core.1");
  crashed.add_artifacts("flight/rank1");
  Say(crashed);
  v1::WorkerExited stopped = End(2, 0, 15, 5);
  stopped.set_stopped_by_us(true);
  stopped.add_artifacts("flight/rank2");
  Say(stopped);
  const FailureRecord& failure = Failure();
  EXPECT_EQ(failure.core_dump, "/var/crash/core.1");
  EXPECT_THAT(failure.artifacts, ElementsAre("flight/rank1", "flight/rank2"));
}

}  // namespace
}  // namespace ddprun::coordinator
