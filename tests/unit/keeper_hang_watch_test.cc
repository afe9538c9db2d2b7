// HangWatch: what counts as motion, and what time counts as standstill. Times are made up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "launcher/keeper/clock.h"
#include "launcher/keeper/hang_watch.h"
#include "launcher/keeper/step_page.h"

namespace ddprun::keeper {
namespace {

constexpr int64_t kBegin = 1000 * kSecond;
constexpr int64_t kHang = 80 * kSecond;
constexpr int64_t kInterval = 10 * kSecond;

// One worker that runs, and a watch that looks at it every interval.
class HangWatchTest : public ::testing::Test {
 protected:
  // Looks so often; returns how often a standstill was told.
  int Look(int times, int64_t interval = kInterval) {
    int told = 0;
    for (int i = 0; i < times; ++i) {
      now += interval;
      if (computes) facts.cpu_ns += interval / 20;
      for (const Standstill& still : watch.Look({&facts, 1}, now)) {
        last_still_ns = still.still_ns;
        ++told;
      }
    }
    return told;
  }
  void Speak(uint32_t phase) {
    page.phase = phase;
    page.changed_ns = static_cast<uint64_t>(now);
    facts.page = &page;
  }

  int64_t now = kBegin;
  int64_t last_still_ns = 0;
  bool computes = false;
  StepPageContent page;
  WorkerFacts facts{.runs = true};
  HangWatch watch{1, kHang, kBegin};
};

TEST_F(HangWatchTest, AStandstillIsToldOnceAfterTheTimeout) {
  EXPECT_EQ(Look(8), 0);
  EXPECT_EQ(Look(1), 1);
  EXPECT_EQ(last_still_ns, kHang);
  EXPECT_EQ(Look(100), 0);
  EXPECT_EQ(watch.StillNs(0, now), kHang + 100 * kInterval);
}

TEST_F(HangWatchTest, ASecondStandstillIsToldAgain) {
  EXPECT_EQ(Look(9), 1);
  ++facts.output_bytes;
  EXPECT_EQ(Look(8), 0);
  EXPECT_EQ(Look(1), 1);
}

TEST_F(HangWatchTest, OutputAndProcessorTimeAreMotionOfAProgram) {
  computes = true;
  EXPECT_EQ(Look(50), 0);
  computes = false;
  for (int i = 0; i < 50; ++i) {
    ++facts.output_bytes;
    EXPECT_EQ(Look(1), 0);
  }
}

// Timers and helpers of a process that waits use a little.
TEST_F(HangWatchTest, LessThanOnePercentOfACoreIsNoMotion) {
  EXPECT_EQ(Look(1), 0);
  int told = 0;
  for (int i = 0; i < 9; ++i) {
    facts.cpu_ns += kInterval / 110;
    told += Look(1);
  }
  EXPECT_EQ(told, 1);
}

// One tick of the kernel is more than 1 % of a short time.
TEST_F(HangWatchTest, ProcessorTimeIsMeasuredOverASecondAtLeast) {
  HangWatch quick(1, 2 * kSecond, now);
  int told = 0;
  for (int i = 0; i < 40; ++i) {
    now += kSecond / 4;
    if (i % 8 == 0) facts.cpu_ns += 10 * kMillisecond;
    told += static_cast<int>(quick.Look({&facts, 1}, now).size());
  }
  EXPECT_EQ(told, 1);
}

TEST_F(HangWatchTest, APageThatDoesNotMoveIsAStandstillHoweverItSpins) {
  computes = true;
  Speak(3);
  EXPECT_EQ(Look(9), 1);
  Speak(3);
  EXPECT_EQ(Look(7), 0);
}

TEST_F(HangWatchTest, LoadingSavingAndEvaluationMayBeBusySilently) {
  for (uint32_t phase : {0u, 1u, 6u, 7u}) {
    computes = true;
    Speak(phase);
    EXPECT_EQ(Look(30), 0) << phase;
    computes = false;
    EXPECT_EQ(Look(9), 1) << phase;
  }
}

// A program that names no phase is judged by its page from its first step on.
TEST_F(HangWatchTest, AfterItsFirstStepAPhaselessProgramHasToGetOn) {
  computes = true;
  Speak(0);
  EXPECT_EQ(Look(30), 0);
  page.step = 1;
  Speak(0);
  EXPECT_EQ(Look(9), 1);
}

// Ranks are compared by the page's own time, but one that lies in it gains nothing.
TEST_F(HangWatchTest, ThePagesTimeIsTakenWhereItCanBeTrue) {
  Speak(3);
  Look(1);
  page.changed_ns = static_cast<uint64_t>(now + 3 * kSecond);
  Look(1);
  EXPECT_EQ(watch.StillNs(0, now), kInterval - 3 * kSecond);
  page.changed_ns = UINT64_MAX / 4;
  Look(1);
  EXPECT_GE(watch.StillNs(0, now), 0);
  page.changed_ns = 1;
  Look(1);
  EXPECT_LE(watch.StillNs(0, now), kInterval);
}

TEST_F(HangWatchTest, OneThatHasNotStartedOrHasEndedDoesNotCount) {
  facts.runs = false;
  EXPECT_EQ(Look(100), 0);
  facts.runs = true;
  EXPECT_EQ(Look(8), 0);
  EXPECT_EQ(Look(1), 1);
}

// A machine or a keeper that was stopped for a while says nothing about the workers.
TEST_F(HangWatchTest, TimeInWhichTheKeeperDidNotRunDoesNotCount) {
  EXPECT_EQ(Look(4), 0);
  EXPECT_EQ(Look(1, 3600 * kSecond), 0);
  EXPECT_EQ(Look(3), 0);
  EXPECT_EQ(Look(2), 1);
}

TEST_F(HangWatchTest, APauseIsNoStandstillAndCountingBeginsAnewAfterIt) {
  EXPECT_EQ(Look(8), 0);
  watch.Pause();
  EXPECT_FALSE(watch.on());
  EXPECT_EQ(Look(20), 0);
  watch.Continue(now);
  EXPECT_TRUE(watch.on());
  EXPECT_EQ(Look(8), 0);
  EXPECT_EQ(Look(1), 1);
}

TEST_F(HangWatchTest, OffOrUnderAnOrderToStopItTellsNothing) {
  HangWatch off(1, 0, kBegin);
  EXPECT_FALSE(off.on());
  watch.End();
  EXPECT_EQ(Look(100), 0);
}

TEST_F(HangWatchTest, TheTimeInADebuggersHandCountsForNothing) {
  EXPECT_EQ(Look(5), 0);
  facts.held = true;
  EXPECT_EQ(Look(50), 0);
  facts.held = false;
  EXPECT_EQ(Look(3), 0);
  EXPECT_EQ(Look(1), 1);
  EXPECT_EQ(last_still_ns, kHang);
}

TEST(HeldByDebugger, IsToldByTheKernel) {
  EXPECT_FALSE(IsHeldByDebugger(getpid()));
  const pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
    _exit(0);
  }
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED | WEXITED | WNOWAIT), 0);
  if (info.si_code == CLD_TRAPPED) {
    EXPECT_TRUE(IsHeldByDebugger(child));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// Idle wake-ups: eight looks in a time-out, and no more than four a second.
TEST(HangWatchInterval, LooksAreRare) {
  EXPECT_EQ(HangWatch(1, 600 * kSecond, 0).interval_ns(), 75 * kSecond);
  EXPECT_EQ(HangWatch(1, 1, 0).interval_ns(), kSecond / 4);
}

TEST(TreeCpu, GrowsWithTheProcessorTimeOfTheProcess) {
  const int64_t before = TreeCpuNs(getpid());
  const int64_t begin = ClockNs(CLOCK_PROCESS_CPUTIME_ID);
  while (ClockNs(CLOCK_PROCESS_CPUTIME_ID) - begin < 50 * kMillisecond) continue;
  EXPECT_GE(TreeCpuNs(getpid()) - before, 30 * kMillisecond);
}

}  // namespace
}  // namespace ddprun::keeper
