// The agent's core: leases, links and the one generation that it may run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "launcher/agent/core.h"

namespace ddprun::agent {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

class CoreAgent : public testing::Test {
 protected:
  void Do(const Event& event) { effects_ = Step(state_, event, now_ns_); }
  // As the coordinator of that link would number it.
  void Hear(v1::CoordinatorMessage message) {
    if (!message.has_welcome() && !message.has_heartbeat_answer()) message = link_.Send(message);
    Do(CoordinatorSaid{message, 0, 0});
  }
  void Welcome(uint64_t link = 1, double lease_seconds = 3) {
    v1::CoordinatorMessage message;
    auto* welcome = message.mutable_welcome();
    welcome->set_job_id("job");
    welcome->set_leader_token("token");
    welcome->set_lease_seconds(lease_seconds);
    welcome->set_heartbeat_seconds(lease_seconds / 4);
    welcome->set_link(link);
    if (link != state_.link_number) link_ = ReliableLink<v1::CoordinatorMessage>();
    Hear(message);
  }
  void Answer(uint64_t sequence) {
    v1::CoordinatorMessage message;
    message.mutable_heartbeat_answer()->set_sequence(sequence);
    Hear(message);
  }
  void Attach(uint64_t link = 1) {
    Do(Connected{});
    Welcome(link);
    Answer(state_.heartbeat_sequence);
  }
  static v1::CoordinatorMessage StartOf(uint64_t generation) {
    v1::CoordinatorMessage message;
    message.mutable_start_workers()->set_generation(generation);
    message.mutable_start_workers()->set_local_world_size(1);
    return message;
  }
  static v1::CoordinatorMessage StopOf(uint64_t generation) {
    v1::CoordinatorMessage message;
    message.mutable_stop_workers()->set_generation(generation);
    message.mutable_stop_workers()->set_mode(v1::StopWorkers::ABORT);
    return message;
  }
  static v1::CoordinatorMessage ValueOf(uint64_t generation) {
    v1::CoordinatorMessage message;
    message.mutable_value()->set_generation(generation);
    return message;
  }
  static v1::AgentMessage StartedFact(uint64_t generation) {
    v1::AgentMessage fact;
    fact.mutable_worker_started()->set_generation(generation);
    return fact;
  }
  template <typename T>
  int Count() const {
    return static_cast<int>(std::count_if(effects_.begin(), effects_.end(), [](const Effect& e) {
      return std::holds_alternative<T>(e);
    }));
  }
  template <typename T>
  const T& Only() const {
    static const T kNone{};
    EXPECT_EQ(Count<T>(), 1);
    for (const Effect& effect : effects_) {
      if (const T* found = std::get_if<T>(&effect)) return *found;
    }
    return kNone;
  }
  // Facts, without heartbeats.
  int CountFacts() const {
    return static_cast<int>(std::count_if(effects_.begin(), effects_.end(), [](const Effect& e) {
      const SendUp* up = std::get_if<SendUp>(&e);
      return up != nullptr && up->message.sequence() != 0;
    }));
  }

  State state_;
  int64_t now_ns_ = 100 * kSecondNs;
  std::vector<Effect> effects_;
  ReliableLink<v1::CoordinatorMessage> link_;
};

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

// ---- leaving

class CoreAgentLeaves : public CoreAgent {
 protected:
  void Run() {
    Attach();
    v1::CoordinatorMessage start = StartOf(1);
    start.mutable_start_workers()->mutable_spec()->set_grace_seconds(20);
    Hear(start);
  }
  // The last Leaving among what was sent up; unplanned and without a reason where there is none.
  v1::Leaving Said() const {
    v1::Leaving leaving;
    for (const Effect& effect : effects_) {
      const SendUp* up = std::get_if<SendUp>(&effect);
      if (up != nullptr && up->message.has_leaving()) leaving = up->message.leaving();
    }
    return leaving;
  }
  void Release() {
    v1::CoordinatorMessage message;
    message.mutable_released()->set_reason("it was asked to");
    Hear(message);
  }
};

// R6: a planned leave leaves the workers alone until the coordinator has stopped them.
TEST_F(CoreAgentLeaves, AsPlannedWhenTheCoordinatorReleasesIt) {
  Run();
  Do(LeaveAsked{"SIGTERM", false});
  EXPECT_TRUE(Said().planned());
  EXPECT_EQ(Count<OrderKeeper>(), 0);
  Hear(StopOf(1));
  Do(KeeperGone{1, false, "gone", {}});
  EXPECT_EQ(Count<End>(), 0);
  Release();
  EXPECT_TRUE(Only<End>().left);
}

// The second time it kills, and says that it leaves when nothing is left.
TEST_F(CoreAgentLeaves, AtOnceTheSecondTime) {
  Run();
  Do(LeaveAsked{"SIGTERM", false});
  Do(LeaveAsked{"SIGTERM", false});
  EXPECT_EQ(Only<OrderKeeper>().order.mode(), v1::StopWorkers::KILL);
  EXPECT_EQ(Said().reason(), "");
  Do(KeeperGone{1, false, "gone", {}});
  EXPECT_EQ(Said().reason(), "SIGTERM");
  EXPECT_FALSE(Said().planned());
  EXPECT_TRUE(Only<End>().left);
}

TEST_F(CoreAgentLeaves, AtOnceWhenNobodyReleasesItInTime) {
  Run();
  Do(LeaveAsked{"SIGTERM", false});
  const int64_t asked_ns = now_ns_;
  while (Count<OrderKeeper>() == 0) {
    now_ns_ = NextDeadlineNs(state_);
    Do(TimePassed{});
    if (state_.heartbeat_sequence != 0 && !state_.heartbeats_sent_ns.empty()) {
      const std::vector<Effect> kept = effects_;
      Answer(state_.heartbeat_sequence);
      effects_ = kept;
    }
  }
  EXPECT_EQ(now_ns_ - asked_ns, 30 * kSecondNs);  // the grace of 20 s, and 10
}

// The job's end wins: its exit code is the agent's.
TEST_F(CoreAgentLeaves, NotWhereTheJobEndsMeanwhile) {
  Run();
  Do(LeaveAsked{"SIGTERM", false});
  v1::CoordinatorMessage ended;
  ended.mutable_job_ended()->set_status("failed");
  ended.mutable_job_ended()->set_exit_code(7);
  Hear(ended);
  Do(KeeperGone{1, false, "gone", {}});
  EXPECT_EQ(Only<End>().exit_code, 7);
  EXPECT_FALSE(Only<End>().left);
}

TEST_F(CoreAgentLeaves, AtOnceWhereNothingRunsAndNobodyAnswers) {
  Do(Connected{});
  Do(LeaveAsked{"SIGTERM", false});
  EXPECT_TRUE(Only<End>().left);
}

// A coordinator that was replaced meanwhile is told again.
TEST_F(CoreAgentLeaves, TellsANewLinkAgain) {
  Run();
  Do(LeaveAsked{"SIGTERM", false});
  Do(Disconnected{"broke"});
  Do(Connected{});
  Welcome(2);
  EXPECT_TRUE(Said().planned());
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
