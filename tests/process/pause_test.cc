// Ctrl-Z and fg, stops during a pause, and a machine that sleeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <csignal>

#include "common/process_tree.h"
#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using ::testing::HasSubstr;

char StateOf(pid_t pid) {
  const std::string stat = ReadText("/proc/" + std::to_string(pid) + "/stat");
  const size_t end = stat.rfind(')');
  return end != std::string::npos && end + 2 < stat.size() ? stat[end + 2] : '\0';
}

bool AwaitState(pid_t pid, bool stopped, double seconds = 10) {
  // 'D': a shell in vfork, whose child is stopped.
  const auto is_stopped = [&] { return StateOf(pid) == 'T' || StateOf(pid) == 'D'; };
  return WaitUntil([&] { return is_stopped() == stopped; }, seconds);
}

int Count(const Launch& launch, const std::string& name) {
  const auto events = launch.Events();
  return static_cast<int>(std::count_if(events.begin(), events.end(),
                                        [&](const auto& e) { return e["event"] == name; }));
}

const std::vector<std::string> kLoop = {
    "--", "sh", "-c", "trap 'echo left; exit 0' TERM; echo up; while :; do sleep 0.05; done"};

// Ctrl-Z stops the workers and then ddprun; fg lets both go on. Twice.
TEST(Pause, CtrlZStopsTheWorkersTooAndFgContinuesThem) {
  Launch launch(Mode::kTogether, 2, kLoop);
  const pid_t first = launch.WorkerPid(1, 0), second = launch.WorkerPid(1, 1);
  for (int round = 1; round <= 2; ++round) {
    launch.Signal(SIGTSTP);
    ASSERT_TRUE(AwaitState(launch.pid(), true));
    // It stops itself when the workers have been stopped, not before.
    EXPECT_EQ(Count(launch, "job_paused"), round);
    EXPECT_TRUE(AwaitState(first, true) && AwaitState(second, true));
    launch.Signal(SIGCONT);
    EXPECT_TRUE(AwaitState(first, false) && AwaitState(second, false));
    EXPECT_TRUE(WaitUntil([&] { return Count(launch, "job_continued") == round; }, 10));
  }
  launch.Signal(SIGTERM);
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 143);
  EXPECT_THAT(finished.output, HasSubstr("paused"));
}

// SIGTERM during a pause: the workers are continued and may leave in their own way.
TEST(Pause, AStopContinuesThePausedWorkersFirst) {
  Launch launch(Mode::kTogether, 1, kLoop);
  const pid_t worker = launch.WorkerPid(1, 0);
  ASSERT_TRUE(WaitUntil([&] { return launch.Log(1, 0).find("up") != std::string::npos; }, 10));
  launch.Signal(SIGTSTP);
  ASSERT_TRUE(AwaitState(launch.pid(), true) && AwaitState(worker, true));
  launch.Signal(SIGTERM);
  launch.Signal(SIGCONT);
  EXPECT_EQ(launch.Wait().exit_code, 143);
  EXPECT_THAT(launch.Log(1, 0), HasSubstr("left"));
}

// S24: kill -9 of a paused ddprun leaves nothing.
TEST(Pause, AKilledLauncherLeavesNoPausedWorkers) {
  Launch launch(Mode::kTogether, 1, kLoop);
  const pid_t worker = launch.WorkerPid(1, 0), keeper = launch.KeeperPid();
  launch.Signal(SIGTSTP);
  ASSERT_TRUE(AwaitState(launch.pid(), true) && AwaitState(worker, true));
  EXPECT_NE(StateOf(keeper), 'T');
  launch.Signal(SIGKILL);
  EXPECT_TRUE(WaitGone(worker, 10) && WaitGone(keeper, 10));
}

// A worker that dies during a pause is a failure like any other, seen when the job goes on.
TEST(Pause, AFailureDuringAPauseIsHandled) {
  Launch launch(Mode::kTogether, 2,
                {"--", "sh", "-c", "[ $DDPRUN_GENERATION = 2 ] || while :; do sleep 0.05; done"});
  const pid_t worker = launch.WorkerPid(1, 1);
  launch.Signal(SIGTSTP);
  ASSERT_TRUE(AwaitState(launch.pid(), true));
  kill(worker, SIGKILL);
  ASSERT_TRUE(WaitGone(worker, 10));
  launch.Signal(SIGCONT);
  EXPECT_EQ(launch.Wait().exit_code, 0);
  EXPECT_EQ((*launch.WaitForEvent("generation_ended", 1, 1))["rank"], 1);
}

// During the wait before a restart nothing is there to stop, and nothing starts until fg.
TEST(Pause, DuringBackOffNothingStarts) {
  Launch launch(
      Mode::kTogether, 1,
      {"--max-restarts", "9", "--", "sh", "-c", "[ $DDPRUN_GENERATION -ge 3 ] || exit 7"});
  // The second restart in a row waits for a second.
  ASSERT_TRUE(launch.WaitForEvent("restart_scheduled", 2, 20));
  launch.Signal(SIGTSTP);
  ASSERT_TRUE(AwaitState(launch.pid(), true));
  EXPECT_EQ(Count(launch, "generation_started"), 2);
  launch.Signal(SIGCONT);
  EXPECT_EQ(launch.Wait().exit_code, 0);
}

// Agents count on a coordinator's answers, so it does not stop itself; a second Ctrl-Z continues.
TEST(Pause, ACoordinatorOfOtherNodesKeepsTheirLeases) {
  Launch launch(Mode::kApart, 1, kLoop);
  const pid_t worker = launch.WorkerPid(1, 0);
  launch.Signal(SIGTSTP);
  ASSERT_TRUE(WaitUntil([&] { return Count(launch, "job_paused") == 1; }, 10));
  EXPECT_TRUE(AwaitState(worker, true));
  EXPECT_NE(StateOf(launch.pid()), 'T');
  launch.Signal(SIGTSTP);
  EXPECT_TRUE(AwaitState(worker, false));
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait().exit_code, 143);
  EXPECT_EQ(Count(launch, "node_lost"), 0);
}

TEST(Pause, DuringAStopCtrlZIsIgnored) {
  Launch launch(Mode::kTogether, 1,
                {"--", "sh", "-c",
                 "trap 'echo leaving; until [ -e go ]; do sleep 0.05; done; exit 0' TERM; echo up; "
                 "while :; do sleep 0.05; done"});
  ASSERT_TRUE(WaitUntil([&] { return launch.Log(1, 0).find("up") != std::string::npos; }, 10));
  launch.Signal(SIGTERM);
  ASSERT_TRUE(WaitUntil([&] { return launch.Log(1, 0).find("leaving") != std::string::npos; }, 10));
  launch.Signal(SIGTSTP);
  ASSERT_TRUE(WaitUntil(
      [&] { return ReadText(launch.folder() + "/output").find("ignored") != std::string::npos; },
      10));
  EXPECT_NE(StateOf(launch.pid()), 'T');
  EXPECT_EQ(std::system(("touch " + launch.folder() + "/go").c_str()), 0);
  EXPECT_EQ(launch.Wait().exit_code, 143);
}

// What the sleep of a laptop looks like to every process of a job on one machine: all of them stand
// still for a while, and go on. Longer than the hang time-out.
TEST(Sleep, NothingDiesWhereEverythingStoodStillForAWhile) {
  Launch launch(Mode::kTogether, 2,
                {"--hang-timeout", "2", "--", "sh", "-c", "while :; do echo .; sleep 0.2; done"});
  ASSERT_GT(launch.WorkerPid(1, 1), 0);
  std::vector<pid_t> all = {launch.pid()};
  for (pid_t pid : ListDescendants(launch.pid())) all.push_back(pid);
  for (pid_t pid : all) kill(pid, SIGSTOP);
  for (pid_t pid : ListDescendants(launch.pid())) kill(pid, SIGSTOP);
  poll(nullptr, 0, 5000);  // the length of the sleep is what is tested
  for (pid_t pid : ListDescendants(launch.pid())) kill(pid, SIGCONT);
  kill(launch.pid(), SIGCONT);
  const std::string before = launch.Log(1, 0);
  EXPECT_TRUE(WaitUntil([&] { return launch.Log(1, 0).size() > before.size() + 20; }, 20));
  EXPECT_EQ(Count(launch, "hang_found"), 0);
  EXPECT_EQ(Count(launch, "worker_exited"), 0);
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait().exit_code, 143);
}

// L12, L13: signals that are named reach every worker of a program, and the job goes on.
TEST(ForwardedSignals, ReachEveryWorker) {
  Launch launch(Mode::kTogether, 2,
                {"--forward-signals", "USR1", "--", "sh", "-c",
                 "trap 'echo usr1; exit 0' USR1; echo up; while :; do sleep 0.05; done"});
  for (int rank : {0, 1}) {
    ASSERT_TRUE(WaitUntil([&] { return launch.Log(1, rank).find("up") != std::string::npos; }, 10));
  }
  // Not named: it is told, and nothing happens.
  launch.Signal(SIGUSR2);
  ASSERT_TRUE(WaitUntil(
      [&] { return ReadText(launch.folder() + "/output").find("SIGUSR2") != std::string::npos; },
      10));
  launch.Signal(SIGUSR1);
  EXPECT_EQ(launch.Wait().exit_code, 0);
  for (int rank : {0, 1}) EXPECT_THAT(launch.Log(1, rank), HasSubstr("usr1"));
}

// As torchrun: SIGQUIT stops too.
TEST(StopSignals, QuitStopsWith131) {
  Launch launch(Mode::kTogether, 1, kLoop);
  ASSERT_TRUE(WaitUntil([&] { return launch.Log(1, 0).find("up") != std::string::npos; }, 10));
  launch.Signal(SIGQUIT);
  EXPECT_EQ(launch.Wait().exit_code, 131);
  EXPECT_THAT(launch.Log(1, 0), HasSubstr("left"));
}

}  // namespace
}  // namespace ddprun::testing
