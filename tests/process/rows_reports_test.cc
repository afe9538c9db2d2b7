// Rows of the reported troubles about exit codes, restart policies and reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/process/launch.h"
#include "tests/process/rows_program.h"

namespace ddprun::testing {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<std::string> Bash(const std::string& script, std::vector<std::string> options = {}) {
  options.insert(options.end(), {"--", "/bin/bash", "-c", script});
  return options;
}

class RowsReports : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, RowsReports, ::testing::Values(Mode::kTogether, Mode::kApart),
                         [](const auto& mode) {
                           return mode.param == Mode::kTogether ? "Together" : "Apart";
                         });

// L30: codes that are restarted, and codes that are not.
TEST_P(RowsReports, CodesDecideAboutTheRestart) {
  struct Case {
    std::vector<std::string> options;
    int code, generations;
  };
  for (const Case& c :
       {Case{{"--no-restart-on", "85,SIGSEGV"}, 85, 1}, Case{{"--no-restart-on", "85"}, 7, 2},
        Case{{"--restart-on", "80-89"}, 85, 2}, Case{{"--restart-on", "80-89"}, 7, 1}}) {
    std::vector<std::string> options = c.options;
    options.insert(options.end(), {"--max-restarts", "1"});
    Launch launch(GetParam(), 2, Bash("exit $((RANK * " + std::to_string(c.code) + "))", options));
    const Finished finished = launch.Wait();
    EXPECT_EQ(finished.exit_code, c.code) << finished.output;
    EXPECT_EQ(launch.Result()["generations"], c.generations) << c.options[0] << " " << c.code;
  }
}

// L60: a worker's "queue me again" in the words of whoever started ddprun.
TEST_P(RowsReports, AnExitCodeMapTranslatesForTheBatchSystem) {
  for (const auto& [end, code] : std::vector<std::pair<std::string, int>>{
           {"exit 85", 75}, {"kill -SEGV $$", 3}, {"exit 7", 7}}) {
    Launch launch(GetParam(), 1,
                  Bash(end, {"--max-restarts", "0", "--exit-code-map", "85=75,SIGSEGV=3"}));
    EXPECT_EQ(launch.Wait().exit_code, code) << end;
    EXPECT_EQ(launch.Result()["exit_code"], code);
  }
}

// L59: a program that cannot be started any more is a failure, in every mode.
TEST_P(RowsReports, AStartThatFailsIsNoSuccess) {
  ScratchFolder folder;
  const std::string program = folder / "program";
  { std::ofstream(program) << "#!/bin/bash\nrm -f " << program << "\nexit 5\n"; }
  ASSERT_EQ(chmod(program.c_str(), 0755), 0);
  Launch launch(GetParam(), 1, {"--", program});
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 127) << finished.output;
  EXPECT_EQ(launch.Result()["failure_kind"], "start_failed");
  EXPECT_THAT(finished.output, HasSubstr(program));
}

// L65: of two workers that use libddprun, one never gets ready.
TEST_P(RowsReports, AWorkerThatNeverGetsReadyEndsAtTheInitTimeout) {
  const std::string worker =
      (fs::path(DdprunPath()).parent_path().parent_path() / "tests/keeper_fake_worker").string();
  Launch launch(GetParam(), 2,
                Bash("mode=ignore; [ $RANK = 1 ] && mode=obey-abort; exec " + worker + " $mode",
                     {"--max-restarts", "0", "--init-timeout", "1"}));
  const Finished finished = launch.Wait(20);
  EXPECT_NE(finished.exit_code, 0);
  const Json failure = launch.Result()["first_failure"];
  EXPECT_EQ(failure["cause"], "init_timeout") << failure;
  EXPECT_THAT(failure["reason"].get<std::string>(), AllOf(HasSubstr("rank 0"), HasSubstr("ready")));
}

// L71: the same last words of several ranks are one group.
TEST(RowsReportsOnce, EqualTracebacksAreGrouped) {
  Launch launch(Mode::kTogether, 4,
                Bash(R"(cd $DDPRUN_STATE_DIR; touch up-$RANK; until [ -e go ]; do sleep 0.02; done
      if [ $RANK = 2 ]; then echo "KeyError: 'other'"; else echo "ValueError: label 7"; fi; exit 1)",
                     {"--max-restarts", "0"}));
  std::vector<pid_t> workers;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string up = launch.run_dir() + "/state/up-" + std::to_string(rank);
    ASSERT_TRUE(WaitUntil([&] { return fs::exists(up); }, 20));
    workers.push_back(launch.WorkerPid(1, rank));
  }
  // All end before the keeper looks: none of them is stopped by ddprun.
  const pid_t keeper = launch.KeeperPid();
  ASSERT_GT(keeper, 0);
  kill(keeper, SIGSTOP);
  { std::ofstream(launch.run_dir() + "/state/go") << ""; }
  for (pid_t pid : workers) EXPECT_TRUE(WaitGone(pid, 20));
  kill(keeper, SIGCONT);
  EXPECT_EQ(launch.Wait().exit_code, 1);
  const Json groups = launch.Result()["first_failure"]["groups"];
  ASSERT_EQ(groups.size(), 2u) << groups;
  EXPECT_EQ(groups[0]["ranks"], Json({0, 1, 3})) << groups;
  EXPECT_EQ(groups[1]["ranks"], Json({2})) << groups;
}

// L73: what Python prints is there at once, though it does not flush.
TEST(RowsReportsOnce, PythonsOutputComesAtOnce) {
  Launch launch(Mode::kTogether, 1,
                {"--", "python3", "-c", "import time; print('at once'); time.sleep(600)"});
  EXPECT_TRUE(WaitUntil([&] { return launch.Log(1, 0) == "at once\n"; }, 20));
  EXPECT_TRUE(WaitUntil(
      [&] {
        return ReadText(launch.folder() + "/output").find(":0] at once") != std::string::npos;
      },
      10));
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(10).exit_code, 143);
}

// S20: what a person reads when the kernel's killer came.
TEST(RowsReportsOnce, AnOutOfMemoryKillIsSaidWithItsLimit) {
  const std::string group = "/sys/fs/cgroup/memory/ddprun-rows-" + std::to_string(getpid());
  if (mkdir(group.c_str(), 0755) != 0) {
    GTEST_SKIP() << "no cgroup of v1 can be made here (needs root); worker_death_test.cc and "
                    "agent_out_of_memory_test.cc have the parts";
  }
  ScratchFolder folder;
  {
    Program program({"/bin/bash", "-c",
                     "echo 200M > " + group + "/memory.limit_in_bytes; echo 200M > " + group +
                         "/memory.memsw.limit_in_bytes; echo $$ > " + group +
                         "/cgroup.procs; exec " + DdprunPath() +
                         " --nproc 2 --run-dir r --max-restarts 0 -- /bin/bash -c 'test $RANK = 1 "
                         "&& exec tail < <(head -c 1G /dev/zero); exec sleep 60'"},
                    folder.path());
    EXPECT_EQ(program.Wait(40), 137);
    EXPECT_THAT(program.Output(),
                AllOf(HasSubstr("OOM-killed, limit 200 MiB"), HasSubstr("rank 1")))
        << program.Output();
  }
  EXPECT_TRUE(WaitUntil([&] { return rmdir(group.c_str()) == 0; }, 10));
}

}  // namespace
}  // namespace ddprun::testing
