// The agent's core: a node that leaves while the job goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/core_agent_harness.h"

namespace ddprun::agent {
namespace {

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

// The coordinator may have let it in, and count on it: its Welcome is awaited for a moment.
TEST_F(CoreAgentLeaves, TellsACoordinatorWhoseWelcomeIsOnTheWay) {
  Do(Connected{});
  Do(LeaveAsked{"SIGTERM", false});
  EXPECT_EQ(Count<End>(), 0);
  Welcome(1);
  EXPECT_TRUE(Said().planned());
  now_ns_ += 3 * kSecondNs;
  Do(TimePassed{});
  EXPECT_EQ(Count<End>(), 0);
  Release();
  EXPECT_TRUE(Only<End>().left);
}

TEST_F(CoreAgentLeaves, TellsACoordinatorThatIsFoundAgain) {
  Attach();
  Do(Disconnected{"broke"});
  Do(Connected{});
  Do(LeaveAsked{"SIGTERM", false});
  EXPECT_EQ(Count<End>(), 0);
  Welcome(1);
  EXPECT_TRUE(Said().planned());
}

TEST_F(CoreAgentLeaves, SoonWhereNothingRunsAndNobodyAnswers) {
  Do(Connected{});
  Do(LeaveAsked{"SIGTERM", false});
  const int64_t asked_ns = now_ns_;
  now_ns_ = NextDeadlineNs(state_);
  EXPECT_LE(now_ns_ - asked_ns, 2 * kSecondNs);
  Do(TimePassed{});
  EXPECT_TRUE(Only<End>().left);
}

TEST_F(CoreAgentLeaves, AtOnceWhereNothingRunsAndTheConnectionFails) {
  Do(Connected{});
  Do(LeaveAsked{"SIGTERM", false});
  Do(Disconnected{"refused"});
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

}  // namespace
}  // namespace ddprun::agent
