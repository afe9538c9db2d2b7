// The agent's core: leases, links and the one generation that it may run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/core_agent_harness.h"

namespace ddprun::agent {
namespace {

TEST_F(CoreAgent, StartsAGenerationUnderItsLease) {
  Attach();
  now_ns_ += kSecondNs;
  Hear(StartOf(1));
  EXPECT_EQ(Only<SpawnKeeper>().lease_milliseconds, 2000);
}

// The lease counts from the sending of the heartbeat that was answered, not from the answer.
TEST_F(CoreAgent, RenewsTheLeaseFromWhenTheHeartbeatWasSent) {
  Attach();
  Hear(StartOf(1));
  now_ns_ += 750'000'000;
  Do(TimePassed{});
  const uint64_t heartbeat = state_.heartbeat_sequence;
  now_ns_ += kSecondNs;
  Answer(heartbeat);
  EXPECT_EQ(Only<RenewLease>().milliseconds, 2000);
  Answer(heartbeat);  // doubled on the way
  EXPECT_EQ(Count<RenewLease>(), 0);
}

TEST_F(CoreAgent, KillsItsWorkersWhenTheLeaseIsOver) {
  Attach();
  Hear(StartOf(1));
  now_ns_ += 3 * kSecondNs;
  Do(TimePassed{});
  EXPECT_EQ(Only<OrderKeeper>().order.mode(), v1::StopWorkers::KILL);
}

// It was stopped (SIGSTOP, a suspended machine) while the job went on, and ended, without it.
TEST_F(CoreAgent, OneThatWasStoppedForLongDoesNotLookForItsCoordinatorForAnotherMinute) {
  Attach();
  now_ns_ += 300 * kSecondNs;
  Do(Disconnected{"broken"});
  EXPECT_EQ(NextDeadlineNs(state_), now_ns_ + 5 * kSecondNs);
  now_ns_ += 5 * kSecondNs;
  Do(TimePassed{});
  EXPECT_EQ(Only<End>().exit_code, 1);
}

// Simulator seed 49: an order that overtook Welcome was carried out without a lease.
TEST_F(CoreAgent, DoesNothingBeforeItsWelcome) {
  Do(Connected{});
  Hear(StartOf(1));
  EXPECT_TRUE(effects_.empty());
  EXPECT_EQ(state_.link.last_received(), 0u);
  EXPECT_FALSE(state_.pending);
}

// Simulator seed 215: the lease was over when the order came; then the coordinator had given this
// node up.
TEST_F(CoreAgent, ForgetsAWaitingOrderWhenItIsWelcomedAnew) {
  Attach(1);
  now_ns_ += 10 * kSecondNs;
  Hear(StartOf(1));
  EXPECT_EQ(Count<SpawnKeeper>(), 0);
  EXPECT_TRUE(state_.pending);
  Do(Disconnected{"broke"});
  Attach(2);
  EXPECT_EQ(Count<SpawnKeeper>(), 0);
  EXPECT_FALSE(state_.pending);
}

// A pause shorter than the coordinator's patience costs nothing: the order waits for the next
// answer.
TEST_F(CoreAgent, KeepsAWaitingOrderWhileTheLeaseIsRenewed) {
  Attach();
  now_ns_ += 3 * kSecondNs + 500'000'000;
  Hear(StartOf(1));
  EXPECT_EQ(Count<SpawnKeeper>(), 0);
  Do(TimePassed{});
  Answer(state_.heartbeat_sequence);
  EXPECT_EQ(Only<SpawnKeeper>().order.generation(), 1u);
}

// Simulator seed 1814: the first Welcome of a new link was lost; the second says the same.
TEST_F(CoreAgent, BeginsTheLinkAnewAlsoWhenTheFirstWelcomeWasLost) {
  Attach(1);
  Hear(StartOf(1));
  Do(KeeperSaid{1, StartedFact(1)});
  EXPECT_EQ(CountFacts(), 1);
  Do(Disconnected{"broke"});
  Do(Connected{});  // its Welcome of link 2 is lost
  Do(Disconnected{"broke again"});
  Do(Connected{});
  EXPECT_EQ(Only<SendUp>().message.hello().link(), 1u);
  Welcome(2);
  EXPECT_EQ(state_.link.last_received(), 0u);
  EXPECT_EQ(CountFacts(), 0);  // what the old link held is of no use any more
  Do(KeeperSaid{1, StartedFact(1)});
  EXPECT_EQ(Only<SendUp>().message.sequence(), 1u);
}

// The same link is not begun anew by a second Welcome: facts are repeated under their numbers.
TEST_F(CoreAgent, RepeatsItsFactsAfterANewStream) {
  Attach(1);
  Hear(StartOf(1));
  Do(KeeperSaid{1, StartedFact(1)});
  Do(Disconnected{"broke"});
  Do(KeeperSaid{1, StartedFact(1)});
  EXPECT_EQ(CountFacts(), 0);
  Do(Connected{});
  Welcome(1);
  EXPECT_EQ(CountFacts(), 2);
}

TEST_F(CoreAgent, HoldsOneGenerationAndNeverAnOlderOne) {
  Attach();
  Hear(StartOf(2));
  Hear(StartOf(1));
  EXPECT_TRUE(effects_.empty());
  Hear(StartOf(3));
  EXPECT_EQ(Only<OrderKeeper>().order.mode(), v1::StopWorkers::KILL);
  EXPECT_EQ(Count<SpawnKeeper>(), 0);
  Do(KeeperGone{2, false, "gone", {}});
  EXPECT_EQ(Only<SpawnKeeper>().order.generation(), 3u);
}

// A generation that was stopped before it began here cannot begin any more.
TEST_F(CoreAgent, ReportsAnUnknownGenerationAsStoppedAndNeverStartsIt) {
  Attach();
  Hear(StopOf(4));
  EXPECT_EQ(Only<SendUp>().message.generation_stopped().generation(), 4u);
  Hear(StartOf(4));
  EXPECT_EQ(Count<SpawnKeeper>(), 0);
}

// L26: workers hear nothing of another generation.
TEST_F(CoreAgent, PassesOnOnlyWhatIsOfTheRunningGeneration) {
  Attach();
  Hear(StartOf(2));
  Hear(ValueOf(1));
  EXPECT_TRUE(effects_.empty());
  Hear(ValueOf(2));
  EXPECT_EQ(Count<TellWorker>(), 1);
  Hear(ValueOf(3));
  EXPECT_TRUE(effects_.empty());
}

TEST_F(CoreAgent, WithoutALeaseEndsItsWorkersWhenTheStreamBreaks) {
  Do(Connected{});
  Welcome(1, 0);
  Hear(StartOf(1));
  EXPECT_EQ(Only<SpawnKeeper>().lease_milliseconds, 0);
  Do(Disconnected{"broke"});
  EXPECT_EQ(Only<OrderKeeper>().order.mode(), v1::StopWorkers::ABORT);
  Do(KeeperGone{1, false, "gone", {}});
  EXPECT_EQ(Only<End>().exit_code, 1);
}

// L19: an agent whose coordinator never comes back ends.
TEST_F(CoreAgent, GivesUpAfterAMinuteWithoutACoordinator) {
  Attach();
  Do(Disconnected{"broke"});
  now_ns_ = NextDeadlineNs(state_);
  EXPECT_EQ(now_ns_, 160 * kSecondNs);
  Do(TimePassed{});
  EXPECT_EQ(Only<End>().exit_code, 1);
}

// L41: one whose coordinator has not come yet waits for ten.
TEST_F(CoreAgent, WaitsTenMinutesForACoordinatorThatComesLater) {
  const int64_t begin = now_ns_;
  Do(Connected{});
  Do(Disconnected{"connection refused"});
  now_ns_ = NextDeadlineNs(state_);
  EXPECT_EQ(now_ns_ - begin, 600 * kSecondNs);
  Do(TimePassed{});
  EXPECT_EQ(Only<End>().exit_code, 3);
}

TEST_F(CoreAgent, EndsWithTheJobWhenNothingRunsAnyMore) {
  Attach();
  Hear(StartOf(1));
  v1::CoordinatorMessage ended;
  ended.mutable_job_ended()->set_status("succeeded");
  Hear(ended);
  EXPECT_EQ(Count<End>(), 0);
  Do(KeeperGone{1, false, "gone", {}});
  EXPECT_EQ(Only<End>().exit_code, 0);
}

// ---- refusals

TEST_F(CoreAgent, TriesAgainWhereARefusalMayPass) {
  Do(Connected{});
  v1::CoordinatorMessage message;
  message.mutable_refusal()->set_kind(v1::Refusal::NAME);
  message.mutable_refusal()->set_retry_seconds(4);
  Hear(message);
  EXPECT_EQ(Count<End>(), 0);
  EXPECT_GT(Only<Reconnect>().not_before_ns, now_ns_);
  Do(Disconnected{"refused"});
  EXPECT_EQ(Count<Reconnect>(), 0);  // it is on its way already
}

TEST_F(CoreAgent, EndsWith2WhenItIsRefusedAndWithTheJobsCodeAfterItsEnd) {
  for (const bool over : {false, true}) {
    state_ = State();
    link_ = ReliableLink<v1::CoordinatorMessage>();
    Do(Connected{});
    v1::CoordinatorMessage message;
    message.mutable_refusal()->set_kind(over ? v1::Refusal::JOB_OVER : v1::Refusal::NAME);
    if (over) message.mutable_refusal()->set_exit_code(0);
    Hear(message);
    EXPECT_EQ(Only<End>().exit_code, over ? 0 : 2);
  }
}

// What an older stream still brings says nothing.
TEST_F(CoreAgent, DropsWhatAReplacedStreamStillBrings) {
  Do(Connected{1});
  Do(Connected{2});
  Do(Disconnected{"the old one broke", 1});
  EXPECT_EQ(Count<Reconnect>(), 0);
  v1::CoordinatorMessage refusal;
  refusal.mutable_refusal()->set_reason("of the old one");
  Do(CoordinatorSaid{refusal, 0, 0, 1});
  EXPECT_EQ(Count<End>(), 0);
}

}  // namespace
}  // namespace ddprun::agent
