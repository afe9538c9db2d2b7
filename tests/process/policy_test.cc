// The coordinator's policies with real processes: codes, ports, hooks, the time limit, nodes that
// fail, who is blamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>

#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using ::testing::HasSubstr;
using Json = Launch::Json;

// A shell program for all ranks, with these options before it. As with torchrun, `$$` in an
// argument means one `$`.
std::vector<std::string> Shell(std::vector<std::string> options, const std::string& script) {
  options.insert(options.end(), {"--no-python", "/bin/sh", "-c", script});
  return options;
}

int Count(const Launch& launch, const std::string& name) {
  int count = 0;
  for (const Json& event : launch.Events()) count += event["event"] == name ? 1 : 0;
  return count;
}

class Policy : public ::testing::TestWithParam<Mode> {};

// S5, L59: the code of the worker is ddprun's; -n stands for a signal.
TEST_P(Policy, ExitCodeIsTheWorkers) {
  for (const auto& [end, code] :
       std::vector<std::pair<std::string, int>>{{"exit 0", 0},
                                                {"exit 1", 1},
                                                {"exit 7", 7},
                                                {"exit 85", 85},
                                                {"kill -KILL $$$$", 137},
                                                {"kill -SEGV $$$$", 139},
                                                {"kill -ABRT $$$$", 134}}) {
    Launch launch(GetParam(), 2, Shell({"--max-restarts", "0"}, end));
    EXPECT_EQ(launch.Wait().exit_code, code) << end;
  }
}

// L30: 85 is not restarted, 86 is.
TEST_P(Policy, CodesThatAreNamedAreNotRestarted) {
  Launch launch(
      GetParam(), 2,
      Shell({"--max-restarts", "5", "--no-restart-on", "85"},
            "test $RANK = 1 || exec sleep 60; exit $((86 - TORCHELASTIC_RESTART_COUNT))"));
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 85);
  EXPECT_EQ(launch.Result()["generations"], 2);
  EXPECT_THAT(std::string(launch.Result()["reason"]), HasSubstr("--no-restart-on"));
}

// L60: the map changes ddprun's code alone.
TEST_P(Policy, ExitCodesAreMapped) {
  Launch launch(GetParam(), 1,
                Shell({"--max-restarts", "0", "--exit-code-map", "SIGSEGV=85"}, "kill -SEGV $$$$"));
  EXPECT_EQ(launch.Wait().exit_code, 85);
  EXPECT_EQ(launch.Result()["exit_code"], 85);
  EXPECT_EQ(launch.Result()["worker_exit_code"], 139);
}

// --time-limit: 124, and what took the TERM well is no failure.
TEST_P(Policy, TimeLimitStopsWith124) {
  Launch launch(GetParam(), 2, Shell({"--time-limit", "1"}, "exec sleep 60"));
  EXPECT_EQ(launch.Wait(20).exit_code, 124);
  EXPECT_EQ(launch.Result()["status"], "stopped");
  EXPECT_THAT(std::string(launch.Result()["reason"]), HasSubstr("time limit"));
}

// Time lost and goodput are there for a program that reports nothing.
TEST_P(Policy, TimeLostIsAccountedForAPlainProgram) {
  Launch launch(
      GetParam(), 2,
      Shell({"--min-uptime", "0.1"}, "sleep 0.5; test $TORCHELASTIC_RESTART_COUNT = 1 || exit 3"));
  EXPECT_EQ(launch.Wait().exit_code, 0);
  const Json result = launch.Result();
  EXPECT_GT(result["time_lost_s"], 0.0);
  EXPECT_EQ(result["time_lost_by_cause"]["worker_error"], result["time_lost_s"]);
  EXPECT_EQ(result["failures"][0]["time_lost_s"], result["time_lost_s"]);
  EXPECT_GT(result["goodput"], 0.3);
  EXPECT_LT(result["goodput"], 1.0);
}

// Shorter than --min-uptime, which is about failures alone.
TEST_P(Policy, AShortProgramThatSucceedsHasWorked) {
  Launch launch(GetParam(), 2, Shell({}, "exec sleep 1"));
  EXPECT_EQ(launch.Wait().exit_code, 0);
  EXPECT_GT(launch.Result()["goodput"], 0.5);
}

INSTANTIATE_TEST_SUITE_P(Modes, Policy, ::testing::Values(Mode::kTogether, Mode::kApart),
                         [](const auto& mode) {
                           return mode.param == Mode::kTogether ? "Together" : "Apart";
                         });

// Hooks get the report twice, and neither their failure nor what they leave disturbs the job.
TEST(Hooks, GetTheReportAndChangeNothing) {
  Launch launch(Mode::kTogether, 2,
                Shell({"--max-restarts", "1", "--on-failure",
                       "cat > failure-$$.json; cmp -s failure-$$.json $DDPRUN_REPORT && echo same; "
                       "sleep 100 & echo left $!",
                       "--on-finish", "cat > finish.json; exit 3"},
                      "test $RANK = 1 || exec sleep 60; echo boom; exit 7"));
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 7);
  const std::string log = ReadText(launch.run_dir() + "/logs/hooks.log");
  EXPECT_THAT(log, HasSubstr("same\nleft "));
  // What a hook left in its group is gone with it.
  const pid_t left = std::atoi(log.c_str() + log.find("left ") + 5);
  EXPECT_TRUE(WaitGone(left, 5)) << left;
  const Json first = Json::parse(ReadText(launch.run_dir() + "/reports/g1.json"), nullptr, false);
  EXPECT_EQ(first["restarting"], true);
  EXPECT_EQ(first["failure"]["rank"], 1);
  EXPECT_EQ(first["failure"]["log_tail"][0], "boom");
  const Json second = Json::parse(ReadText(launch.run_dir() + "/reports/g2.json"), nullptr, false);
  EXPECT_EQ(second["restarting"], false);
  EXPECT_EQ(Json::parse(ReadText(launch.folder() + "/finish.json"), nullptr, false),
            launch.Result());
  EXPECT_EQ(Count(launch, "hook_failed"), 1);
  EXPECT_THAT(finished.output, HasSubstr("--on-finish command failed: it exited with code 3"));
}

// A hook that hangs delays no restart.
TEST(Hooks, DelayNoRestart) {
  Launch launch(
      Mode::kTogether, 1,
      Shell({"--max-restarts", "1", "--on-failure", "until test -e go; do sleep 0.02; done"},
            "test $TORCHELASTIC_RESTART_COUNT = 1 || exit 3; exec sleep 60"));
  ASSERT_TRUE(launch.WaitForEvent("worker_started", 2, 20));
  launch.Signal(SIGTERM);
  ASSERT_TRUE(launch.WaitForEvent("job_finished", 2, 20));
  std::ofstream(launch.folder() + "/go") << "now";
  EXPECT_EQ(launch.Wait().exit_code, 143);
}

// S6: rank 2 raises; the others abort with NCCL-like text around it.
TEST(Blame, IsTheRanksThatRaised) {
  const std::string script =
      "case $RANK in"
      " 2) sleep 0.3; echo 'ValueError: boom' >&2; exit 1;;"
      " 0) sleep 0.28;; 1) sleep 0.35;; 3) sleep 0.6;; esac;"
      " echo 'ncclRemoteError: A call failed possibly due to a network error or a remote process"
      " exiting prematurely. NCCL WARN socketProgress: Connection closed by remote peer' >&2;"
      " kill -ABRT $$$$";
  Launch launch(Mode::kTogether, 4, Shell({"--max-restarts", "0"}, script));
  EXPECT_EQ(launch.Wait().exit_code, 1);
  const Json failure = launch.Result()["first_failure"];
  EXPECT_EQ(failure["rank"], 2);
  EXPECT_EQ(failure["cause"], "worker_error");
  EXPECT_THAT(failure["log_tail"].dump(), HasSubstr("ValueError: boom"));
}

// L56, S14: a thief takes MASTER_PORT in the first generation; the job gets another, free of
// charge.
TEST(PortThief, CostsNoRestart) {
  const std::string program =
      "import os, socket, sys\n"
      "s = socket.socket()\n"
      "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
      "s.bind((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))\n"
      "s.listen()\n"
      "if os.environ['DDPRUN_GENERATION'] == '1':\n"
      "  t = socket.socket()\n"
      "  try:\n"
      "    t.bind((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))\n"
      "  except OSError as e:\n"
      "    sys.exit(f'TCPStore: cannot listen on port {os.environ[\"MASTER_PORT\"]}: {e}')\n";
  Launch launch(Mode::kTogether, 1,
                {"--max-restarts", "0", "--no-python", "python3", "-c", program});
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_EQ(launch.Result()["restarts"], 0);
  EXPECT_EQ(launch.Result()["generations"], 2);
  auto restart = launch.WaitForEvent("restart_scheduled", 1, 1);
  ASSERT_TRUE(restart);
  EXPECT_EQ((*restart)["free"], true);
}

// L29: the only node goes on, and says so.
TEST(NodeStrikes, DoNotStopASingleNode) {
  Launch launch(Mode::kTogether, 1,
                Shell({"--node-strikes", "1", "--node-cooldown", "600"},
                      "test $TORCHELASTIC_RESTART_COUNT = 1 || exit 3"));
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_EQ(Count(launch, "node_kept"), 1);
  EXPECT_THAT(finished.output, HasSubstr("goes on"));
}

// A failed health check is no worker's fault, and the job says that it could not start.
TEST(HealthCheck, ThatFailsEndsTheJobAsNotStarted) {
  Launch launch(Mode::kTogether, 1,
                Shell({"--max-restarts", "0", "--health-check", "echo no GPU; exit 9"}, "exit 0"));
  EXPECT_EQ(launch.Wait().exit_code, 4);
  const Json result = launch.Result();
  EXPECT_EQ(result["failure_kind"], "start_failed");
  EXPECT_EQ(result["first_failure"]["cause"], "node_unhealthy");
  EXPECT_EQ(result["first_failure"]["rank"], -1);
}

}  // namespace
}  // namespace ddprun::testing
