// The keeper's decisions about stops, as a table of what follows from what; no process, no clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "launcher/keeper/clock.h"
#include "launcher/keeper/stop_policy.h"

namespace ddprun::keeper {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Name(const Effect& effect) {
  std::string worker = " ";
  worker += std::to_string(effect.worker);
  switch (effect.kind) {
    case EffectKind::kTellLeaseExpired:
      return "lease expired";
    case EffectKind::kSendAbort:
      return "abort" + worker;
    case EffectKind::kTerminateWorker:
      return "term" + worker;
    case EffectKind::kKillWorkerTree:
      return "kill" + worker;
    case EffectKind::kTerminateOrphans:
      return "term orphans";
    case EffectKind::kKillOrphans:
      return "kill orphans";
    case EffectKind::kKillAll:
      return "kill all";
    case EffectKind::kGiveUp:
      return "give up";
    case EffectKind::kGone:
      return "gone";
  }
  return "?";
}

// A keeper of two workers with a grace of 10 s; worker 0 speaks the protocol.
class StopPolicyTest : public ::testing::Test {
 protected:
  StopPolicyTest() {
    policy_.grace_ns = 10 * kSecond;
    state_.workers.resize(2);
    Happens({.kind = EventKind::kHello, .worker = 0});
  }

  std::vector<std::string> Happens(const StopEvent& event) {
    std::vector<std::string> names;
    for (const Effect& effect : Step(policy_, &state_, event, now_ns_))
      names.push_back(Name(effect));
    return names;
  }
  std::vector<std::string> Order(StopMode mode, int64_t grace_ns = -1) {
    return Happens({.kind = EventKind::kOrder, .mode = mode, .duration_ns = grace_ns});
  }
  std::vector<std::string> Ended(size_t worker) {
    return Happens({.kind = EventKind::kWorkerEnded, .worker = worker});
  }
  std::vector<std::string> After(int64_t ns) {
    now_ns_ += ns;
    return Happens({.kind = EventKind::kTimePassed});
  }
  int64_t NextIn() const { return NextDeadline(policy_, state_) - now_ns_; }

  StopPolicy policy_;
  StopState state_;
  int64_t now_ns_ = 1000 * kSecond;
};

TEST_F(StopPolicyTest, NothingIsDueWhileWorkersRun) {
  EXPECT_EQ(NextDeadline(policy_, state_), kNever);
  EXPECT_THAT(After(1000 * kSecond), IsEmpty());
}

TEST_F(StopPolicyTest, StopIsTermThenKillAtTheEndOfTheGrace) {
  EXPECT_THAT(Order(StopMode::kStop), ElementsAre("kill orphans", "term 0", "term 1"));
  EXPECT_EQ(NextIn(), 10 * kSecond);
  EXPECT_THAT(After(10 * kSecond - 1), IsEmpty());
  EXPECT_THAT(After(1), ElementsAre("kill 0", "kill 1", "kill all"));
}

TEST_F(StopPolicyTest, AbortTellsThoseWhoSpeakAndTerminatesTheOthers) {
  EXPECT_THAT(Order(StopMode::kAbort), ElementsAre("kill orphans", "abort 0", "term 1"));
  EXPECT_EQ(NextIn(), kSecond / 2);
  EXPECT_THAT(After(kSecond / 2), ElementsAre("kill 0"));
  EXPECT_EQ(NextIn(), 10 * kSecond - kSecond / 2);
}

TEST_F(StopPolicyTest, KillIsAtOnce) {
  EXPECT_THAT(Order(StopMode::kKill), ElementsAre("kill all"));
}

TEST_F(StopPolicyTest, GraceOfZeroIsKilledAtOnce) {
  EXPECT_THAT(Order(StopMode::kStop, 0),
              ElementsAre("kill orphans", "term 0", "term 1", "kill 0", "kill 1", "kill all"));
}

TEST_F(StopPolicyTest, SofterOrderIsIgnored) {
  Order(StopMode::kAbort);
  EXPECT_THAT(Order(StopMode::kStop, 0), IsEmpty());
  Order(StopMode::kKill);
  EXPECT_THAT(Order(StopMode::kAbort), IsEmpty());
}

TEST_F(StopPolicyTest, AbortAfterStopShortensTheTimeAndNeverLengthensIt) {
  Order(StopMode::kStop, 2 * kSecond);
  EXPECT_THAT(Order(StopMode::kAbort), ElementsAre("abort 0"));
  EXPECT_EQ(NextIn(), kSecond / 2);
  EXPECT_THAT(After(2 * kSecond), ElementsAre("kill 0", "kill 1", "kill all"));
}

TEST_F(StopPolicyTest, SecondStopWithLessGraceShortensTheTime) {
  Order(StopMode::kStop);
  EXPECT_THAT(Order(StopMode::kStop, kSecond), IsEmpty());
  EXPECT_EQ(NextIn(), kSecond);
}

TEST_F(StopPolicyTest, OrphansUnderAnOrderGetTheRestOfTheirWorkersGrace) {
  Order(StopMode::kStop);
  now_ns_ += 4 * kSecond;
  EXPECT_THAT(Ended(0), ElementsAre("term orphans"));
  EXPECT_THAT(Ended(1), ElementsAre("term orphans"));
  EXPECT_EQ(NextIn(), 6 * kSecond);
  EXPECT_THAT(After(6 * kSecond), ElementsAre("kill orphans", "kill all"));
}

TEST_F(StopPolicyTest, OrphansOfAnAbortedWorkerGetHalfASecond) {
  Order(StopMode::kAbort);
  Ended(0);
  EXPECT_EQ(NextIn(), kSecond / 2);
  EXPECT_THAT(After(kSecond / 2), ElementsAre("kill orphans"));
}

TEST_F(StopPolicyTest, GoneAsSoonAsNoChildIsLeftEvenInTheGrace) {
  Order(StopMode::kStop);
  Ended(0);
  Ended(1);
  EXPECT_THAT(Happens({.kind = EventKind::kChildrenGone}), ElementsAre("gone"));
  EXPECT_EQ(NextDeadline(policy_, state_), kNever);
  EXPECT_THAT(After(100 * kSecond), IsEmpty());
}

TEST_F(StopPolicyTest, WorkerThatEndsByItselfLeavesItsOrphansUntilTheOrder) {
  EXPECT_THAT(Ended(1), IsEmpty());
  EXPECT_THAT(Order(StopMode::kStop), ElementsAre("kill orphans", "term 0"));
}

TEST_F(StopPolicyTest, LastWorkersEndIsTheEndOfAll) {
  EXPECT_THAT(Ended(0), IsEmpty());
  EXPECT_THAT(Ended(1), ElementsAre("kill all"));
  EXPECT_THAT(Happens({.kind = EventKind::kChildrenGone}), ElementsAre("gone"));
}

TEST_F(StopPolicyTest, ChildrenAreNotGoneWhileAWorkerIsNot) {
  Order(StopMode::kKill);
  Ended(0);
  EXPECT_THAT(Happens({.kind = EventKind::kChildrenGone}), IsEmpty());
}

TEST_F(StopPolicyTest, SweepsAreRepeatedLessAndLessOftenAndAfterEachDeath) {
  Order(StopMode::kKill);
  EXPECT_EQ(NextIn(), kMillisecond);
  EXPECT_THAT(After(kMillisecond), ElementsAre("kill all"));
  EXPECT_EQ(NextIn(), 2 * kMillisecond);
  EXPECT_THAT(Happens({.kind = EventKind::kChildEnded}), ElementsAre("kill all"));
  for (int i = 0; i < 20; ++i) After(NextIn());
  EXPECT_EQ(NextIn(), policy_.sweep_pause_max_ns);
}

TEST_F(StopPolicyTest, GivesUpAfterTenSeconds) {
  Order(StopMode::kKill);
  Ended(0);
  EXPECT_THAT(After(policy_.unkillable_ns), ElementsAre("give up"));
  EXPECT_THAT(Ended(1), IsEmpty());
}

TEST_F(StopPolicyTest, LeaseThatRunsOutKills) {
  Happens({.kind = EventKind::kLease, .duration_ns = 3 * kSecond});
  EXPECT_EQ(NextIn(), 3 * kSecond);
  now_ns_ += 2 * kSecond;
  Happens({.kind = EventKind::kLease, .duration_ns = 3 * kSecond});
  EXPECT_THAT(After(3 * kSecond), ElementsAre("lease expired", "kill all"));
}

TEST_F(StopPolicyTest, LateRenewalDoesNotRevive) {
  Happens({.kind = EventKind::kLease, .duration_ns = 3 * kSecond});
  now_ns_ += 5 * kSecond;
  EXPECT_THAT(Happens({.kind = EventKind::kLease, .duration_ns = 3 * kSecond}),
              ElementsAre("lease expired", "kill all"));
}

TEST_F(StopPolicyTest, LeaseOfZeroMeansNone) {
  Happens({.kind = EventKind::kLease, .duration_ns = 3 * kSecond});
  Happens({.kind = EventKind::kLease, .duration_ns = 0});
  EXPECT_EQ(NextDeadline(policy_, state_), kNever);
}

}  // namespace
}  // namespace ddprun::keeper
