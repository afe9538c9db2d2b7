// Rows of the reported troubles about stops: the grace on every path, deaths at any index, Ctrl-C
// and the end of the terminal, and successes that stay successes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/process/launch.h"
#include "tests/process/rows_program.h"

namespace ddprun::testing {
namespace {

// Several nodes need one; the programs that tests start inherit it.
[[maybe_unused]] const int kSecretIsSet = setenv("DDPRUN_SECRET", "of the tests alone", 1);

using Json = nlohmann::json;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<std::string> Bash(const std::string& script, std::vector<std::string> options = {}) {
  options.insert(options.end(), {"--", "/bin/bash", "-c", script});
  return options;
}

class RowsStops : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, RowsStops, ::testing::Values(Mode::kTogether, Mode::kApart),
                         [](const auto& mode) {
                           return mode.param == Mode::kTogether ? "Together" : "Apart";
                         });

// L1, L2, S3: a worker that saves for a while after SIGTERM is not killed within the grace, also
// when it is a peer's failure that ends the generation, with a restart behind it and without.
TEST_P(RowsStops, TheGraceIsTheSameAfterAFailureAndBeforeARestart) {
  Launch launch(GetParam(), 2,
                Bash(R"(cd $DDPRUN_STATE_DIR; g=$DDPRUN_GENERATION
      trap 'sleep 1.2; echo saved > saved-$g; exit 0' TERM
      if [ $RANK = 1 ]; then until [ -e up-$g ]; do sleep 0.02; done; exit 5; fi
      touch up-$g; while :; do sleep 0.05; done)",
                     {"--max-restarts", "1", "--grace", "20"}));
  EXPECT_EQ(launch.Wait(40).exit_code, 5);
  for (int generation : {1, 2}) {
    EXPECT_EQ(ReadText(launch.run_dir() + "/state/saved-" + std::to_string(generation)), "saved\n");
    const auto saved = launch.WaitFor(
        [&](const Json& e) {
          return e["event"] == "worker_exited" && e["generation"] == generation && e["rank"] == 0;
        },
        1);
    ASSERT_TRUE(saved);
    EXPECT_EQ((*saved)["exit_code"], 0) << *saved;
    EXPECT_EQ((*saved)["cause"], "stopped");
    // The next one begins when it has saved, not before.
    const auto next = launch.WaitForEvent("generation_started", 2, 1);
    ASSERT_TRUE(next);
    EXPECT_EQ((*next)["t"] >= (*saved)["t"], generation == 1);
  }
}

// S4: the rank that had to be killed is named.
TEST_P(RowsStops, TheRankThatIgnoresTermIsNamed) {
  Launch launch(GetParam(), 2,
                Bash("if [ $RANK = 1 ]; then trap '' TERM; fi; touch $DDPRUN_STATE_DIR/up-$RANK; "
                     "while :; do sleep 0.1; done",
                     {"--grace", "0.6"}));
  for (const char* rank : {"0", "1"}) {
    ASSERT_TRUE(WaitUntil([&] { return fs::exists(launch.run_dir() + "/state/up-" + rank); }, 20));
  }
  launch.Signal(SIGTERM);
  const Finished finished = launch.Wait(10);
  EXPECT_EQ(finished.exit_code, 143);
  EXPECT_THAT(finished.output, HasSubstr("and killed: rank 1\n"));
}

// L10, L21, L66, D2: one of eight is killed, whichever it is; a second later nothing runs any more.
TEST_P(RowsStops, TheDeathOfAnyOfEightIsNoticedWithinASecond) {
  Launch launch(GetParam(), 8,
                {"--max-restarts", "3", "--min-uptime", "0", "--", "/bin/sleep", "600"});
  const int ranks[] = {0, 3, 7};
  for (int generation = 1; generation <= 3; ++generation) {
    std::vector<pid_t> pids(8);
    for (int rank = 0; rank < 8; ++rank) {
      pids[rank] = launch.WorkerPid(generation, rank);
      ASSERT_GT(pids[rank], 0);
    }
    const auto killed = std::chrono::steady_clock::now();
    ASSERT_EQ(kill(pids[ranks[generation - 1]], SIGKILL), 0);
    for (pid_t pid : pids) EXPECT_TRUE(WaitGone(pid, 5));
    EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(1));
  }
  ASSERT_GT(launch.WorkerPid(4, 7), 0);
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(10).exit_code, 143);
  EXPECT_EQ(launch.Result()["restarts"], 3);
}

// L43: rank 0 saves for longer than the others; that takes no success away, and holds no one to a
// barrier.
TEST_P(RowsStops, ARankThatSavesForLongerLosesNoSuccess) {
  Launch launch(GetParam(), 3,
                Bash("cd $DDPRUN_STATE_DIR; [ $RANK = 0 ] || exit 0; until [ -e go ]; do sleep "
                     "0.05; done; echo saved > saved",
                     {"--max-restarts", "0", "--lease", "1"}));
  for (int rank : {1, 2}) {
    EXPECT_TRUE(launch.WaitFor(
        [&](const Json& e) { return e["event"] == "worker_exited" && e["rank"] == rank; }, 20));
  }
  // Longer than the lease and its margin, which are all that could end it.
  EXPECT_TRUE(WaitGone(launch.WorkerPid(1, 1), 5));
  EXPECT_FALSE(WaitGone(launch.WorkerPid(1, 0), 2.5)) << "it was not left to save";
  { std::ofstream(launch.run_dir() + "/state/go") << ""; }
  EXPECT_EQ(launch.Wait(10).exit_code, 0);
  EXPECT_EQ(ReadText(launch.run_dir() + "/state/saved"), "saved\n");
  EXPECT_EQ(launch.Result()["generations"], 1);
}

// ---- at a terminal

class RowsTerminal : public ::testing::Test {
 protected:
  // `run` or `coordinator …` with options and a job.
  std::vector<std::string> Command(std::vector<std::string> words) const {
    words.insert(words.begin(), DdprunPath());
    return words;
  }
  bool Exists(const std::string& name, double seconds = 20) const {
    return WaitUntil([&] { return fs::exists(folder_ / name); }, seconds);
  }
  // Two presses of Ctrl-C: the second when the first is being carried out.
  void PressTwice(Program& program) {
    program.Type('\x03');
    ASSERT_TRUE(program.Says("SIGINT: ")) << program.Output();
    program.Type('\x03');
  }
  ScratchFolder folder_;
};

const char kStubborn[] = "trap '' TERM INT; echo $$ > pid; mv pid up; while :; do sleep 0.1; done";

// L16, S24: Ctrl-C twice while workers run that ignore it.
TEST_F(RowsTerminal, CtrlCTwiceKillsStubbornWorkers) {
  Program program(Command({"--run-dir", "r", "--grace", "600", "--", "/bin/bash", "-c", kStubborn}),
                  folder_.path(), Program::Where::kTerminal);
  ASSERT_TRUE(Exists("up"));
  const pid_t worker = std::stoi(ReadText(folder_ / "up"));
  PressTwice(program);
  EXPECT_EQ(program.Wait(5), 130) << program.Output();
  EXPECT_TRUE(WaitGone(worker, 0));
}

// L16, S24: … and while nothing but the health check of the start runs.
TEST_F(RowsTerminal, CtrlCTwiceEndsAStart) {
  Program program(Command({"--run-dir", "r", "--health-check", kStubborn, "--", "/bin/true"}),
                  folder_.path(), Program::Where::kTerminal);
  ASSERT_TRUE(Exists("up"));
  const pid_t check = std::stoi(ReadText(folder_ / "up"));
  program.Type('\x03');
  program.Type('\x03');
  EXPECT_EQ(program.Wait(5), 130) << program.Output();
  EXPECT_TRUE(WaitGone(check, 0));
}

// L16, S24: … and while nodes are awaited.
TEST_F(RowsTerminal, CtrlCEndsARendezvous) {
  Program program(Command({"coordinator", "--listen", "127.0.0.1:0", "--nnodes", "2", "--run-dir",
                           "r", "--", "/bin/true"}),
                  folder_.path(), Program::Where::kTerminal);
  ASSERT_TRUE(program.Says("listening on "));
  program.Type('\x03');
  program.Type('\x03');
  EXPECT_EQ(program.Wait(5), 130) << program.Output();
}

// L16, S24: … and with coordinator and agent apart: the coordinator's stops the job, the agent's
// takes its node away.
TEST_F(RowsTerminal, CtrlCAtCoordinatorOrAgentLeavesNothing) {
  for (const bool at_agent : {false, true}) {
    const std::string run = at_agent ? "r2" : "r1";
    fs::remove(folder_ / "up");
    Program coordinator(
        Command({"coordinator", "--listen", "127.0.0.1:0", "--run-dir", run, "--grace", "600",
                 "--max-restarts", "0", "--join-timeout", "1", "--", "/bin/bash", "-c", kStubborn}),
        folder_.path(), Program::Where::kTerminal);
    Program agent(Command({"agent", "--coordinator", coordinator.LineBehind("listening on ")}),
                  folder_.path(), Program::Where::kTerminal);
    ASSERT_TRUE(Exists("up"));
    const pid_t worker = std::stoi(ReadText(folder_ / "up"));
    if (at_agent) {
      // The first one leaves as planned, which gives the workers the job's grace.
      PressTwice(agent);
      EXPECT_EQ(agent.Wait(5), 130) << agent.Output();
      EXPECT_TRUE(WaitGone(worker, 1));
      EXPECT_EQ(coordinator.Wait(20), 4) << coordinator.Output();
    } else {
      PressTwice(coordinator);
      EXPECT_EQ(coordinator.Wait(5), 130) << coordinator.Output();
      EXPECT_EQ(agent.Wait(5), 130) << agent.Output();  // the job's exit code
      EXPECT_TRUE(WaitGone(worker, 0));
    }
  }
}

// S24: SIGTERM at any moment of the start, from before the program has looked at its command line
// to after its workers run: the end comes at once, and leaves nobody.
TEST_F(RowsTerminal, ASigtermAtAnyMomentOfTheStartLeavesNothing) {
  constexpr int kMoments = 25;
  for (int moment = 0; moment < kMoments; ++moment) {
    const std::string run = std::string("r").append(std::to_string(moment));
    Program program(Command({"--nproc", "2", "--run-dir", run, "--", "/bin/bash", "-c",
                             "echo $$ > $DDPRUN_STATE_DIR/pid-$RANK; exec sleep 600"}),
                    folder_.path());
    WaitGone(program.pid(), 0.002 * moment);
    program.Signal(SIGTERM);
    EXPECT_EQ(program.Wait(5), 143) << program.Output();
    for (const char* rank : {"0", "1"}) {
      const std::string text =
          ReadText(std::string(folder_ / run).append("/state/pid-").append(rank));
      EXPECT_TRUE(text.empty() || WaitGone(std::stoi(text), 0)) << moment;
    }
  }
}

// L11, S8: the terminal is closed. Without nohup the job is stopped, and its worker may save.
TEST_F(RowsTerminal, TheEndOfTheTerminalStopsTheJobInOrder) {
  Program program(Command({"--run-dir", "r", "--", "/bin/bash", "-c",
                           "trap 'sleep 0.3; touch saved; exit 0' TERM; touch up; while :; do "
                           "sleep 0.05; done"}),
                  folder_.path(), Program::Where::kTerminal);
  ASSERT_TRUE(Exists("up"));
  program.CloseTerminal();
  EXPECT_EQ(program.Wait(10), 129);
  EXPECT_TRUE(fs::exists(folder_ / "saved"));
  EXPECT_THAT(ReadText(folder_ / "r/result.json"), HasSubstr("\"stopped\""));
}

// L11, S8: … with nohup it goes on to its end.
TEST_F(RowsTerminal, UnderNohupTheJobOutlivesItsTerminal) {
  Program program({"/usr/bin/nohup", DdprunPath(), "--run-dir", "r", "--", "/bin/bash", "-c",
                   "touch up; until [ -e go ]; do sleep 0.05; done; echo after the terminal"},
                  folder_.path(), Program::Where::kTerminal);
  ASSERT_TRUE(Exists("up"));
  program.CloseTerminal();
  // What ended it would have come before this is seen.
  EXPECT_FALSE(WaitGone(program.pid(), 0.5));
  { std::ofstream(folder_ / "go") << ""; }
  EXPECT_EQ(program.Wait(10), 0);
  EXPECT_EQ(ReadText(folder_ / "r/logs/g1/rank0.log"), "after the terminal\n");
}

}  // namespace
}  // namespace ddprun::testing
