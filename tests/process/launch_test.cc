// Any program under ddprun: exit codes, environment, restarts, stops, orphans. Every test runs with
// coordinator and agent in one process and apart over TCP.
#include "tests/process/launch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <set>
#include <thread>

namespace ddprun::testing {
namespace {

using Json = nlohmann::json;

class LaunchTest : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, LaunchTest, ::testing::Values(Mode::kTogether, Mode::kApart),
                         [](const auto& mode) {
                           return mode.param == Mode::kTogether ? "Together" : "Apart";
                         });

std::vector<std::string> Shell(const std::string& script, std::vector<std::string> options = {}) {
  options.insert(options.end(), {"--", "/bin/bash", "-c", script});
  return options;
}

int Count(const std::vector<Json>& events, const std::string& name) {
  int count = 0;
  for (const Json& event : events) count += event["event"] == name;
  return count;
}

// S5, L60, L59: the exit code is that of the root cause, 128 + n for a signal.
TEST_P(LaunchTest, TheExitCodeIsTheWorkers) {
  struct Case {
    const char* script;
    int code;
  };
  for (const Case& c :
       {Case{"exit 0", 0}, Case{"exit 1", 1}, Case{"exit 7", 7}, Case{"exit 85", 85},
        Case{"kill -KILL $$", 137}, Case{"kill -SEGV $$", 139}, Case{"kill -ABRT $$", 134}}) {
    Launch launch(
        GetParam(), 2,
        Shell(std::string("if [ $RANK = 1 ]; then ") + c.script + "; fi", {"--max-restarts", "0"}));
    Finished finished = launch.Wait();
    EXPECT_EQ(finished.exit_code, c.code) << c.script << "\n" << finished.output;
    Json result = launch.Result();
    EXPECT_EQ(result["exit_code"], c.code) << c.script;
    EXPECT_EQ(result["status"], c.code == 0 ? "succeeded" : "failed");
    if (c.code != 0) {
      EXPECT_EQ(result["first_failure"]["rank"], 1) << result;
      EXPECT_EQ(result["failure_kind"], "worker_failed");
    }
  }
}

TEST_P(LaunchTest, WorkersSeeTheirPlaceInTheEnvironment) {
  Launch launch(GetParam(), 3,
                Shell("echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
                      "$MASTER_ADDR; test -n \"$MASTER_PORT\" && test \"$DDPRUN_GENERATION\" = 1"));
  ASSERT_EQ(launch.Wait().exit_code, 0);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string r = std::to_string(rank);
    EXPECT_EQ(launch.Log(1, rank), r + " " + r + " 3 3 0 127.0.0.1\n");
  }
}

// L23, D8, S17: failures of the start are not repeated for ever, and the reason is kept.
TEST_P(LaunchTest, ThreeFailuresBeforeTheStartEndTheJob) {
  Launch launch(GetParam(), 2, Shell("echo bad argument; exit 3"));
  Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_EQ(launch.Result()["generations"], 3);
  EXPECT_NE(finished.output.find("bad argument"), std::string::npos) << finished.output;
}

// R2, L24: one budget for the whole job, exact.
TEST_P(LaunchTest, TheRestartBudgetIsExact) {
  Launch launch(GetParam(), 2,
                Shell("test $RANK = $((DDPRUN_GENERATION % 2)) && exit 5; sleep 60",
                      {"--max-restarts", "2"}));
  EXPECT_EQ(launch.Wait().exit_code, 5);
  EXPECT_EQ(Count(launch.Events(), "generation_started"), 3);
  EXPECT_EQ(launch.Result()["restarts"], 2);
  EXPECT_EQ(launch.Result()["failures"].size(), 3u);
}

// L10, D1: the death of any rank is noticed at once, whatever its index.
TEST_P(LaunchTest, TheDeathOfAnyRankEndsTheGenerationWithinASecond) {
  for (int rank : {0, 3}) {
    Launch launch(GetParam(), 4, Shell("exec sleep 600", {"--max-restarts", "0"}));
    const pid_t pid = launch.WorkerPid(1, rank);
    ASSERT_GT(pid, 0);
    for (int other = 0; other < 4; ++other) ASSERT_GT(launch.WorkerPid(1, other), 0);
    kill(pid, SIGKILL);
    EXPECT_EQ(launch.Wait(5).exit_code, 137);
    double died = 0, ended = 0;
    for (const Json& event : launch.Events()) {
      if (event["event"] == "worker_exited" && event["rank"] == rank) {
        died = event["t"];
        EXPECT_EQ(event["cause"], "failed");
        EXPECT_EQ(event["signal"], "SIGKILL");
      }
      if (event["event"] == "generation_ended") ended = event["t"];
    }
    EXPECT_LT(ended - died, 1.0);
  }
}

// S2, L5, A4: what a dead worker left behind is gone before the next generation begins.
TEST_P(LaunchTest, ChildrenOfADeadWorkerAreGoneBeforeTheNextGeneration) {
  const char* script =
      "if [ $DDPRUN_GENERATION = 1 ]; then"
      "  setsid sleep 701 & echo $! > $DDPRUN_STATE_DIR/child-$RANK-a; (sleep 702 & echo $! > "
      "$DDPRUN_STATE_DIR/child-$RANK-b);"
      "  test $RANK = 0 && exit 1; wait;"
      "else for f in $DDPRUN_STATE_DIR/child-*; do kill -0 $(cat $f) 2>/dev/null && exit 9; done; "
      "exit 0; fi";
  Launch launch(GetParam(), 2, Shell(script));
  Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_EQ(launch.Result()["generations"], 2);
}

// S4: a worker that ignores TERM is killed when the grace is over.
TEST_P(LaunchTest, AWorkerThatIgnoresTermIsKilledAtTheGrace) {
  Launch launch(GetParam(), 2,
                Shell("trap '' TERM; echo up; while true; do sleep 0.2; done", {"--grace", "1.5"}));
  ASSERT_TRUE(
      WaitUntil([&] { return launch.Log(1, 0) == "up\n" && launch.Log(1, 1) == "up\n"; }, 20));
  const auto before = std::chrono::steady_clock::now();
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(10).exit_code, 143);
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  EXPECT_GE(took, 1.4);
  EXPECT_LE(took, 4.0);
  EXPECT_EQ(launch.Result()["status"], "stopped");
}

// L1, S3: a worker that needs its time after TERM gets it.
TEST_P(LaunchTest, AWorkerMaySaveAfterTermWithinTheGrace) {
  Launch launch(GetParam(), 2,
                Shell("trap 'sleep 1; echo saved > $DDPRUN_STATE_DIR/saved-$RANK; exit 0' TERM; "
                      "echo up; while true; do sleep 0.1; done",
                      {"--grace", "20"}));
  ASSERT_TRUE(
      WaitUntil([&] { return launch.Log(1, 0) == "up\n" && launch.Log(1, 1) == "up\n"; }, 20));
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(15).exit_code, 143);
  EXPECT_EQ(ReadText(launch.run_dir() + "/state/saved-0"), "saved\n");
  EXPECT_EQ(ReadText(launch.run_dir() + "/state/saved-1"), "saved\n");
}

// L16, S24: a second Ctrl-C kills at once.
TEST_P(LaunchTest, ASecondInterruptKillsAtOnce) {
  Launch launch(
      GetParam(), 2,
      Shell("trap '' TERM INT; echo up; while true; do sleep 0.2; done", {"--grace", "60"}));
  ASSERT_TRUE(
      WaitUntil([&] { return launch.Log(1, 0) == "up\n" && launch.Log(1, 1) == "up\n"; }, 20));
  launch.Signal(SIGINT);
  // The first is being carried out once the launcher says so.
  ASSERT_TRUE(WaitUntil(
      [&] { return ReadText(launch.folder() + "/output").find("SIGINT") != std::string::npos; },
      10));
  // From another sender, as two presses of Ctrl-C are not one sender's repetition.
  ASSERT_EQ(std::system(("kill -INT " + std::to_string(launch.pid())).c_str()), 0);
  EXPECT_EQ(launch.Wait(5).exit_code, 130);
}

// GNU timeout sends SIGTERM to its child and at once to the whole group: that is one stop, with its
// grace.
TEST_P(LaunchTest, ASignalToldTwiceByOneSenderIsOneWish) {
  Launch launch(
      GetParam(), 2,
      Shell("trap 'sleep 0.5; echo saved; exit 0' TERM; echo up; while true; do sleep 0.1; done"));
  ASSERT_TRUE(
      WaitUntil([&] { return launch.Log(1, 0) == "up\n" && launch.Log(1, 1) == "up\n"; }, 20));
  launch.Signal(SIGTERM);
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(10).exit_code, 143);
  EXPECT_EQ(launch.Log(1, 0), "up\nsaved\n");
  EXPECT_EQ(launch.Log(1, 1), "up\nsaved\n");
}

// Slurm repeats its SIGTERM at a time limit, seconds later; only its SIGKILL means more.
TEST_P(LaunchTest, ARepeatedSigtermOfSlurmIsOneWish) {
  Launch launch(
      GetParam(), 2,
      Shell("trap 'sleep 2.5; echo saved; exit 0' TERM; echo up; while true; do sleep 0.1; done"),
      {{"SLURM_JOB_ID", "7"}});
  ASSERT_TRUE(
      WaitUntil([&] { return launch.Log(1, 0) == "up\n" && launch.Log(1, 1) == "up\n"; }, 20));
  launch.Signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  launch.Signal(SIGCONT);
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(10).exit_code, 143);
  EXPECT_EQ(launch.Log(1, 0), "up\nsaved\n");
  EXPECT_EQ(launch.Log(1, 1), "up\nsaved\n");
}

// L12, S9: SIGUSR2 reaches every worker of a plain program, and the job goes on.
TEST_P(LaunchTest, Usr2IsPassedOnAndTheJobGoesOn) {
  Launch launch(GetParam(), 2,
                Shell("trap 'echo got; exit 0' USR2; echo up; while true; do sleep 0.1; done"));
  ASSERT_TRUE(
      WaitUntil([&] { return launch.Log(1, 0) == "up\n" && launch.Log(1, 1) == "up\n"; }, 20));
  launch.Signal(SIGUSR2);
  EXPECT_EQ(launch.Wait(10).exit_code, 0);
  EXPECT_EQ(launch.Log(1, 0), "up\ngot\n");
  EXPECT_EQ(launch.Log(1, 1), "up\ngot\n");
}

// L8, S1, A4, TR17: nothing of the job is left 2 s after kill -9 of the launcher.
TEST_P(LaunchTest, NothingIsLeftAfterTheLauncherIsKilled) {
  Launch launch(GetParam(), 2,
                Shell("setsid sleep 703 & echo $! > $DDPRUN_STATE_DIR/child-$RANK; echo $$ >> "
                      "$DDPRUN_STATE_DIR/child-$RANK; echo up; wait"));
  ASSERT_TRUE(
      WaitUntil([&] { return launch.Log(1, 0) == "up\n" && launch.Log(1, 1) == "up\n"; }, 20));
  std::vector<pid_t> pids = {launch.KeeperPid()};
  for (int rank = 0; rank < 2; ++rank) {
    std::ifstream in(launch.run_dir() + "/state/child-" + std::to_string(rank));
    for (pid_t pid = 0; in >> pid;) pids.push_back(pid);
  }
  ASSERT_EQ(pids.size(), 5u);
  kill(launch.agent_pid(), SIGKILL);
  for (pid_t pid : pids) EXPECT_TRUE(WaitGone(pid, 2)) << pid;
}

// The keeper's death costs one restart, and leaves nothing.
TEST_P(LaunchTest, TheKeepersDeathIsAFailureLikeAnother) {
  Launch launch(GetParam(), 2,
                Shell("if [ $DDPRUN_GENERATION = 2 ]; then exit 0; fi; setsid sleep 704 & echo $! "
                      "> $DDPRUN_STATE_DIR/child-$RANK; echo up; wait"));
  ASSERT_TRUE(
      WaitUntil([&] { return launch.Log(1, 0) == "up\n" && launch.Log(1, 1) == "up\n"; }, 20));
  const pid_t keeper = launch.KeeperPid();
  ASSERT_GT(keeper, 0);
  kill(keeper, SIGKILL);
  EXPECT_EQ(launch.Wait(20).exit_code, 0);
  EXPECT_EQ(launch.Result()["restarts"], 1);
  for (int rank = 0; rank < 2; ++rank) {
    std::ifstream in(launch.run_dir() + "/state/child-" + std::to_string(rank));
    pid_t pid = 0;
    in >> pid;
    EXPECT_TRUE(WaitGone(pid, 1));
  }
}

// L68, S19: log files hold what the worker wrote, byte for byte.
TEST_P(LaunchTest, LogsAreByteForByte) {
  Launch launch(GetParam(), 2,
                Shell("head -c 300000 /dev/urandom | tee $DDPRUN_STATE_DIR/copy-$RANK"));
  ASSERT_EQ(launch.Wait().exit_code, 0);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string copy = ReadText(launch.run_dir() + "/state/copy-" + std::to_string(rank));
    ASSERT_EQ(copy.size(), 300000u);
    EXPECT_EQ(launch.Log(1, rank), copy);
  }
}

// R10, L56, S14: the master port is the worker's to bind, and a second job runs beside the first.
TEST_P(LaunchTest, TwoJobsAtOnceHavePortsOfTheirOwn) {
  const char* script =
      "python3 -c \"import os,socket; s=socket.socket(); "
      "s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); "
      "s.bind(('',int(os.environ['MASTER_PORT']))); s.listen()\"";
  Launch first(GetParam(), 1, Shell(script)), second(GetParam(), 1, Shell(script));
  EXPECT_EQ(first.Wait().exit_code, 0) << first.Log(1, 0);
  EXPECT_EQ(second.Wait().exit_code, 0) << second.Log(1, 0);
}

// A script without its interpreter is bad usage: nothing starts, no run folder is made.
TEST(LaunchOnceTest, AMissingInterpreterIsNamedAndNothingStarts) {
  char script[] = "/tmp/ddprun-script-XXXXXX";
  const int fd = mkstemp(script);
  ASSERT_GE(fd, 0);
  const std::string text = "#!/nope/interpreter\n";
  ASSERT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ASSERT_EQ(fchmod(fd, 0755), 0);
  close(fd);
  Launch launch(Mode::kTogether, 1, {"--", script});
  Finished finished = launch.Wait();
  unlink(script);
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_NE(finished.output.find("/nope/interpreter"), std::string::npos) << finished.output;
  EXPECT_NE(access(launch.run_dir().c_str(), F_OK), 0);
}

}  // namespace
}  // namespace ddprun::testing
