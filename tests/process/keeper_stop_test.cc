// ddprun-keeper and the end of a generation: orders, grace, lease, the agent's death, and trees
// that do not want to go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tests/process/keeper_harness.h"

namespace ddprun::keeper_test {
namespace {

using ::testing::HasSubstr;

std::chrono::duration<double> Since(Clock::time_point begin) {
  return Clock::now() - begin;
}

// L4: the signal goes to the wrapper, and its children go too.
TEST(KeeperStop, WrappersChildrenGoWithIt) {
  KeeperProcess keeper({.workers = {Shell("sleep 998 & sleep 999 & echo up; wait", true)}});
  keeper.AwaitConsole(0, "up");
  keeper.Stop("stop");
  keeper.AwaitGone();
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("SIGNAL"), SIGTERM);
  keeper.ExpectNothingLeft(Milliseconds(0));
}

// S4: one that ignores TERM is killed when the grace is over.
TEST(KeeperStop, WorkerThatIgnoresTermIsKilledAtTheEndOfTheGrace) {
  KeeperProcess keeper(
      {.workers = {Shell("trap '' TERM; echo up; while :; do sleep 1; done", true)}});
  keeper.AwaitConsole(0, "up");
  const auto order = Clock::now();
  keeper.Stop("stop", 700);
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("SIGNAL"), SIGKILL);
  EXPECT_NEAR(Since(order).count(), 0.7, 0.3);
  keeper.AwaitGone();
}

// S3, L1: one that needs its time gets it.
TEST(KeeperStop, WorkerThatSavesWithinTheGraceIsNotKilled) {
  KeeperProcess keeper(
      {.workers = {Shell(
           "trap 'sleep 0.6; echo saved; exit 9' TERM; echo up; while :; do sleep 0.05; done",
           true)},
       .grace_ms = 4000});
  keeper.AwaitConsole(0, "up");
  keeper.Stop("stop");
  keeper.AwaitGone();
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("CODE"), 9);
  EXPECT_THAT(keeper.Log(0), HasSubstr("saved\n"));
}

TEST(KeeperStop, ChildOfAnEndedWrapperGetsTermAndTheRestOfTheGrace) {
  KeeperProcess keeper(
      {.workers = {Shell("(trap 'sleep 0.4; echo child saved; exit' TERM; echo up; "
                         "while :; do sleep 0.05; done) & wait",
                         true)},
       .grace_ms = 4000});
  keeper.AwaitConsole(0, "up");
  keeper.Stop("stop");
  keeper.AwaitGone();
  EXPECT_THAT(keeper.Log(0), HasSubstr("child saved\n"));
}

// D2: the order to leave goes to the worker itself; no time-out of a collective is waited for.
TEST(KeeperStop, AbortedWorkerLeavesByItself) {
  KeeperProcess keeper({.workers = {Fake({"obey-abort"}), Fake({"obey-abort"})}});
  for (int rank : {0, 1}) keeper.AwaitFromWorker("Ready", rank);
  const auto order = Clock::now();
  keeper.Stop("abort");
  keeper.AwaitGone();
  EXPECT_LT(Since(order).count(), 0.4);
  for (int rank : {0, 1}) EXPECT_EQ(keeper.Await("Exited", rank).Integer("CODE"), 3);
}

// L67, A1: also when it is caught in an abort of NCCL.
TEST(KeeperStop, AbortedWorkerThatDoesNotLeaveIsKilledAfterHalfASecond) {
  KeeperProcess keeper({.workers = {Fake({"ignore"})}, .grace_ms = 30000});
  keeper.AwaitFromWorker("Hello", 0);
  const auto order = Clock::now();
  keeper.Stop("abort");
  keeper.AwaitGone();
  EXPECT_LT(Since(order).count(), 0.6);
  EXPECT_GT(Since(order).count(), 0.4);
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("SIGNAL"), SIGKILL);
}

TEST(KeeperStop, AbortGivesAnUnmodifiedProgramItsGrace) {
  KeeperProcess keeper(
      {.workers = {
           Shell("trap 'sleep 0.7; exit 9' TERM; echo up; while :; do sleep 0.05; done", true)}});
  keeper.AwaitConsole(0, "up");
  keeper.Stop("abort");
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("CODE"), 9);
  keeper.AwaitGone();
}

TEST(KeeperStop, HarsherOrderOverrides) {
  KeeperProcess keeper(
      {.workers = {Shell("trap '' TERM; echo up; while :; do sleep 1; done", true)}});
  keeper.AwaitConsole(0, "up");
  keeper.Stop("stop", 60000);
  const auto order = Clock::now();
  keeper.Stop("kill");
  keeper.Stop("stop", 60000);
  keeper.AwaitGone();
  EXPECT_LT(Since(order).count(), 1.0);
}

TEST(KeeperStop, StoppedProcessIsKilledToo) {
  KeeperProcess keeper(
      {.workers = {Shell("trap '' TERM; echo up; while :; do kill -STOP $$; done", true)}});
  keeper.AwaitConsole(0, "up");
  keeper.Stop("stop", 300);
  keeper.AwaitGone();
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("SIGNAL"), SIGKILL);
}

TEST(KeeperStop, TermToTheKeeperKillsAll) {
  KeeperProcess keeper(
      {.workers = {Shell("trap '' TERM; sleep 998 & echo up; while :; do sleep 1; done", true)}});
  keeper.AwaitConsole(0, "up");
  for (int ignored : {SIGINT, SIGHUP, SIGPIPE, SIGUSR1, SIGQUIT}) kill(keeper.pid(), ignored);
  kill(keeper.pid(), SIGTERM);
  keeper.AwaitGone();
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("SIGNAL"), SIGKILL);
  keeper.ExpectNothingLeft(Milliseconds(0));
}

// L5, S2: nothing of a worker that ended by itself outlives its generation.
TEST(KeeperTree, ChildrenThatAWorkerLeftBehindAreGoneBeforeGone) {
  KeeperProcess keeper({.workers = {Shell("sleep 991 & exit 1"), Shell("setsid sleep 992 & exit 0"),
                                    Shell("(setsid bash -c 'sleep 993 & sleep 994' &) ; exit 7")}});
  const auto begin = Clock::now();
  keeper.AwaitGone();
  EXPECT_LT(Since(begin).count(), 1.5) << "no grace for what nobody ordered to stop";
  keeper.ExpectNothingLeft(Milliseconds(0));
}

TEST(KeeperTree, OrderKillsChildrenOfAWorkerThatHadEndedByItself) {
  KeeperProcess keeper(
      {.workers = {Shell("trap '' TERM; (sleep 997 & echo child $!); exit 1", true),
                   Fake({"obey-abort"})},
       .grace_ms = 20000});
  keeper.AwaitFromWorker("Ready", 1);
  keeper.Await("Exited", 0);
  const auto order = Clock::now();
  keeper.Stop("abort");
  keeper.AwaitGone();
  EXPECT_LT(Since(order).count(), 1.0);
  keeper.ExpectNothingLeft(Milliseconds(0));
}

TEST(KeeperTree, WideTreeOfSessionsThatIgnoresTermGoes) {
  KeeperProcess keeper({.workers = {Fake({"forest", "3"}), Fake({"forest", "3"})}});
  for (int rank : {0, 1}) keeper.AwaitFromWorker("Ready", rank);
  keeper.Stop("kill");
  keeper.AwaitGone();
  keeper.ExpectNothingLeft(Milliseconds(0));
}

TEST(KeeperTree, ProcessThatForksAndEndsForEverDoesNotEscape) {
  KeeperProcess keeper({.workers = {Fake({"comet", "3"})}});
  keeper.AwaitFromWorker("Ready", 0);
  keeper.Stop("kill");
  keeper.AwaitGone();
  keeper.ExpectNothingLeft(Milliseconds(0));
}

// S1, L8, A5: nothing outlives a launcher that was killed.
TEST(KeeperAgent, ItsEndInTheForegroundKillsEverything) {
  KeeperProcess keeper(
      {.workers = {
           Shell("trap '' TERM; setsid sleep 995 & (sleep 996 &) ; echo up; wait; wait", true),
           Fake({"ignore"})}});
  keeper.AwaitConsole(0, "up");
  keeper.AwaitFromWorker("Hello", 1);
  const auto death = Clock::now();
  keeper.CloseControl();
  EXPECT_EQ(keeper.AwaitExit(Milliseconds(1000)), 0);
  keeper.ExpectNothingLeft(Milliseconds(0));
  EXPECT_LT(Since(death).count(), 1.0);
}

TEST(KeeperAgent, WorkersOutliveItUnderADaemonUntilTheLeaseEnds) {
  KeeperProcess keeper(
      {.workers = {Shell("echo up; exec sleep 999", true)}, .lease_ms = 600, .foreground = false});
  keeper.AwaitConsole(0, "up");
  const auto death = Clock::now();
  const pid_t worker = static_cast<pid_t>(keeper.Await("Started", 0).Integer("PID"));
  keeper.CloseControl();
  EXPECT_FALSE(AwaitDeath(worker, Milliseconds(250)));
  EXPECT_EQ(keeper.AwaitExit(Milliseconds(2000)), 0);
  EXPECT_LT(Since(death).count(), 1.2);
  keeper.ExpectNothingLeft(Milliseconds(0));
}

// A5.
TEST(KeeperDeath, KillsItsWorkers) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  KeeperProcess keeper(
      {.workers = {Shell("echo up; while :; do sleep 1; done", true), Fake({"ignore"})}});
  keeper.AwaitConsole(0, "up");
  keeper.AwaitFromWorker("Hello", 1);
  std::vector<pid_t> workers;
  for (int rank : {0, 1}) {
    workers.push_back(static_cast<pid_t>(keeper.Await("Started", rank).Integer("PID")));
  }
  kill(keeper.pid(), SIGKILL);
  EXPECT_EQ(keeper.AwaitExit(), 128 + SIGKILL);
  for (pid_t worker : workers) {
    EXPECT_TRUE(AwaitDeath(worker, Milliseconds(1000)));
    waitpid(worker, nullptr, 0);  // ours now, since this process is the next subreaper
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(KeeperLease, WorkersAreKilledWhenItRunsOut) {
  const auto begin = Clock::now();
  KeeperProcess keeper(
      {.workers = {Shell("trap '' TERM; while :; do sleep 1; done")}, .lease_ms = 400});
  const int64_t expired_ns = keeper.Await("LeaseExpired").Integer("TIME_NS");
  EXPECT_NEAR(Since(begin).count(), 0.4, 0.2);
  keeper.AwaitGone();
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("SIGNAL"), SIGKILL);
  EXPECT_GE(keeper.Await("Exited", 0).Integer("TIME_NS"), expired_ns);
  EXPECT_LT(Since(begin).count(), 1.0);
}

TEST(KeeperLease, RenewalCountsFromItsArrival) {
  KeeperProcess keeper({.workers = {Shell("exec sleep 999")}, .lease_ms = 400});
  keeper.Await("Started", 0);
  const auto renewal = Clock::now();
  keeper.Send(PacketWriter("Lease").Integer("MS", 900).Finish());
  keeper.Await("LeaseExpired");
  EXPECT_NEAR(Since(renewal).count(), 0.9, 0.25);
  keeper.AwaitGone();
}

// S10: a lease that ran out while the machine stood still is not revived by a packet that had
// waited.
TEST(KeeperLease, RenewalThatWaitedDuringAPauseComesTooLate) {
  KeeperProcess keeper({.workers = {Shell("exec sleep 999")}, .lease_ms = 300});
  const pid_t worker = static_cast<pid_t>(keeper.Await("Started", 0).Integer("PID"));
  kill(keeper.pid(), SIGSTOP);
  keeper.Send(PacketWriter("Lease").Integer("MS", 60000).Finish());
  EXPECT_FALSE(AwaitDeath(worker, Milliseconds(500)));  // the pause, longer than the lease
  kill(keeper.pid(), SIGCONT);
  keeper.Await("LeaseExpired");
  keeper.AwaitGone();
}

// A keeper that was stopped before it could start them has no worker to kill.
TEST(KeeperLease, NothingStartsWhenItHasRunOut) {
  KeeperProcess keeper({.workers = {Shell("echo up", true), Shell("echo up")}, .lease_ms = -1});
  EXPECT_GT(keeper.Await("LeaseExpired").Integer("TIME_NS"), 0);
  keeper.Await("Gone");
  EXPECT_EQ(keeper.AwaitExit(), 0);
  EXPECT_EQ(keeper.Count("Started"), 0u);
  EXPECT_EQ(keeper.Count("Exited"), 0u);
  EXPECT_EQ(keeper.Count("StartFailed"), 0u);
  EXPECT_EQ(keeper.Log(0) + keeper.Log(1), "");
}

// L7: what cannot be killed is named, and the keeper does not wait for ever.
TEST(KeeperTree, UnkillableProcessIsNamedAfterTenSeconds) {
  if (geteuid() != 0)
    GTEST_SKIP() << "needs root to make a program that an ordinary keeper may not kill";
  const std::string folder =
      std::filesystem::temp_directory_path() / ("ddprun-keeper-setuid-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string program = folder + "/worker";
  std::filesystem::copy_file(FakeWorker(), program,
                             std::filesystem::copy_options::overwrite_existing);
  ASSERT_EQ(chmod(program.c_str(), 04755), 0);
  KeeperOptions options{.workers = {{.arguments = {program, "become-root"}, .log = "/dev/null"}}};
  options.before_exec = [] {
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) _exit(1);
  };
  pid_t pid = 0;
  {
    KeeperProcess keeper(options);
    pid = static_cast<pid_t>(keeper.Await("Started", 0).Integer("PID"));
    keeper.AwaitFromWorker("Ready", 0);
    keeper.Stop("kill");
    const auto order = Clock::now();
    keeper.AwaitGone(Milliseconds(15000));
    EXPECT_NEAR(Since(order).count(), 10, 1);
    EXPECT_EQ(keeper.Await("Unkillable", 0).Integer("PID"), pid);
    EXPECT_EQ(keeper.Await("Gone").Text("PIDS"), std::to_string(pid));
    kill(pid, SIGKILL);
    EXPECT_TRUE(AwaitDeath(pid, kPatience));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ddprun::keeper_test
