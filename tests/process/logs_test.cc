// Logs end to end: what workers print arrives in files byte for byte and on the console behind its
// prefix, no reader holds up a worker, and `ddprun logs` shows it again.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/process/launch.h"

extern char** environ;

namespace ddprun::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Shell(const std::string& script, std::vector<std::string> options = {}) {
  options.insert(options.end(), {"--", "sh", "-c", script});
  return options;
}

// A process whose standard output is a pipe that is read only when the test says so.
class Piped {
 public:
  Piped(const std::vector<std::string>& command, const std::string& folder) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = ends[0];
    std::vector<char*> argv;
    for (const auto& part : command) argv.push_back(const_cast<char*>(part.c_str()));
    argv.push_back(nullptr);
    error_path_ = folder + "/piped-error";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, error_path_.c_str(), O_WRONLY | O_CREAT, 0644);
    posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }
  ~Piped() {
    close(reader_);
    if (pid_ <= 0 || ended_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  std::string Error() const { return ReadText(error_path_); }
  // Everything until the end of file.
  std::string ReadAll() const {
    std::string all;
    char buffer[65536];
    for (ssize_t size = 0; (size = read(reader_, buffer, sizeof buffer)) > 0;) {
      all.append(buffer, static_cast<size_t>(size));
    }
    return all;
  }
  int Wait(double seconds) {
    int status = -1;
    ended_ = WaitUntil([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, seconds);
    return ended_ && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int reader_ = -1;
  bool ended_ = false;
  std::string error_path_;
};

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "ddprun-logs-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

int64_t StatusKiB(pid_t pid, const std::string& key) {
  const std::string status = ReadText("/proc/" + std::to_string(pid) + "/status");
  const size_t at = status.find(key + ":");
  return at == std::string::npos ? -1
                                 : std::strtoll(status.c_str() + at + key.size() + 1, nullptr, 10);
}

// <log>.1, .2, … <log> in a row.
std::string WholeLog(const std::string& log) {
  std::string all;
  for (int i = 1; fs::exists(log + "." + std::to_string(i)); ++i) {
    all += ReadText(log + "." + std::to_string(i));
  }
  return all + ReadText(log);
}

// The lines behind one prefix, without it.
std::string LinesOf(const std::string& text, int rank) {
  std::istringstream lines(text);
  const std::regex prefix("^\\[[^\\]]*:" + std::to_string(rank) + "\\] ");
  std::string all;
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (!std::regex_search(line, found, prefix)) continue;
    all.append(found.suffix().str()).append("\n");
  }
  return all;
}

class LogsTest : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, LogsTest, ::testing::Values(Mode::kTogether, Mode::kApart),
                         [](const auto& mode) {
                           return mode.param == Mode::kTogether ? "Together" : "Apart";
                         });

// L68, S19: a megabyte of anything arrives in the file as it was.
TEST_P(LogsTest, RandomBytesArriveIntact) {
  Launch launch(GetParam(), 2,
                Shell("head -c 1048576 /dev/urandom | tee \"$DDPRUN_STATE_DIR/copy$RANK\""));
  ASSERT_EQ(launch.Wait().exit_code, 0);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string copy = ReadText(launch.run_dir() + "/state/copy" + std::to_string(rank));
    EXPECT_EQ(copy.size(), 1048576u);
    EXPECT_TRUE(launch.Log(1, rank) == copy) << "rank " << rank;
  }
}

// L71: host and rank stand before each line, and --log-ranks chooses.
TEST(Logs, LinesHaveNodeAndRankBeforeThemAndRanksAreChosen) {
  Launch launch(Mode::kTogether, 3, Shell("echo \"hello from $RANK\"", {"--log-ranks", "0,2"}));
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_EQ(LinesOf(finished.output, 0), "hello from 0\n");
  EXPECT_EQ(LinesOf(finished.output, 1), "");
  EXPECT_EQ(LinesOf(finished.output, 2), "hello from 2\n");
  EXPECT_EQ(launch.Log(1, 1), "hello from 1\n");
}

// torchrun's --redirects: local ranks that are quiet.
TEST(Logs, RedirectedRanksAreQuietAndInTheirFiles) {
  Launch launch(Mode::kTogether, 2, Shell("echo \"hello from $RANK\"", {"--redirects", "1:3"}));
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_EQ(LinesOf(finished.output, 0), "hello from 0\n");
  EXPECT_EQ(LinesOf(finished.output, 1), "");
  EXPECT_EQ(launch.Log(1, 1), "hello from 1\n");
}

// L70: a bar of \r only: the first and the last update are shown, all are in the file.
TEST(Logs, ProgressBarsAreShownAsUpdates) {
  Launch launch(Mode::kTogether, 1,
                Shell("i=0; while [ $i -lt 2000 ]; do printf '\\r%d%%' $i; i=$((i+1)); done"));
  const Finished finished = launch.Wait();
  EXPECT_THAT(finished.output, HasSubstr(":0] 0%\n"));
  EXPECT_THAT(finished.output, HasSubstr(":0] 1999%\n"));
  EXPECT_LT(finished.output.size(), 5000u);
  EXPECT_THAT(launch.Log(1, 0), HasSubstr("\r1234%\r1235%\r"));
}

// L74: where the files are is said at the start and with a failure.
TEST(Logs, WhereTheFilesAreIsSaid) {
  Launch launch(Mode::kTogether, 1, Shell("exit 3", {"--max-restarts", "0"}));
  const Finished finished = launch.Wait();
  EXPECT_THAT(finished.output, ContainsRegex("run folder .*run.*logs"));
  EXPECT_THAT(finished.output, HasSubstr("logs/g1/rank0.log"));
}

// The end of a log that has just been rotated is still what a failure is shown with.
TEST(Logs, TheEndOfARotatedLogIsShownWithAFailure) {
  Launch launch(
      Mode::kTogether, 1,
      Shell("seq -f 'line %g' 700; exit 3", {"--max-restarts", "0", "--log-max-size", "4K"}));
  EXPECT_EQ(launch.Wait().exit_code, 3);
  const auto tail = launch.Result()["first_failure"]["log_tail"];
  ASSERT_EQ(tail.size(), 30u);
  EXPECT_EQ(tail.front(), "line 671");
  EXPECT_EQ(tail.back(), "line 700");
}

// S19, L76: `ddprun … | sleep`: output as fast as it can, nobody reads.
TEST(Logs, AStoppedReaderBlocksNoWorkerFillsNoMemoryAndCostsNoByteInTheFile) {
  constexpr int64_t kBytes = 400'000'000;
  Folder folder;
  Piped piped(
      {DdprunPath(), "--nproc", "1", "--run-dir", "run", "--", "sh", "-c",
       "yes 'a line of sixty-four bytes, as they come from a training loop 1' | head -c " +
           std::to_string(kBytes) + "; touch written; while [ ! -e go ]; do sleep 0.05; done"},
      folder.path());
  ASSERT_TRUE(WaitUntil([&] { return fs::exists(folder.path() + "/written"); }, 50))
      << "the worker is blocked";
  EXPECT_LT(StatusKiB(piped.pid(), "VmHWM"), 96 * 1024);
  EXPECT_GT(StatusKiB(piped.pid(), "VmHWM"), 0);
  // The keeper is a child of ddprun's loop thread.
  bool keeper_seen = false;
  for (const auto& task :
       fs::directory_iterator("/proc/" + std::to_string(piped.pid()) + "/task")) {
    std::istringstream pids(ReadText(task.path() / "children"));
    for (pid_t pid = 0; pids >> pid;) {
      if (ReadText("/proc/" + std::to_string(pid) + "/comm") != "ddprun-keeper\n") continue;
      keeper_seen = true;
      EXPECT_LT(StatusKiB(pid, "VmHWM"), 8 * 1024);
    }
  }
  EXPECT_TRUE(keeper_seen);
  std::ofstream(folder.path() + "/go") << "";
  EXPECT_EQ(piped.Wait(20), 0);
  EXPECT_EQ(fs::file_size(folder.path() + "/run/logs/g1/rank0.log"), static_cast<uint64_t>(kBytes));
  EXPECT_THAT(piped.Error(), ContainsRegex("standard output was not read: [0-9]+ bytes"));
}

// Over a restart, through rotated files, from before its end to its end.
TEST_P(LogsTest, LogsFollowsAJobOverRestartsAndRotationsToItsEnd) {
  Launch launch(GetParam(), 2,
                Shell("seq -f \"g$DDPRUN_GENERATION %g of some longer text to fill files\" 300; "
                      "touch $DDPRUN_STATE_DIR/at$DDPRUN_GENERATION-$RANK; "
                      "while [ ! -e $DDPRUN_STATE_DIR/go ]; do sleep 0.02; done; echo last; "
                      "if [ $DDPRUN_GENERATION = 1 ]; then sleep 0.1; exit 3; fi",
                      {"--log-max-size", "4K", "--max-restarts", "1"}));
  const std::string state = launch.run_dir() + "/state";
  ASSERT_TRUE(
      WaitUntil([&] { return fs::exists(state + "/at1-0") && fs::exists(state + "/at1-1"); }, 20));
  Piped logs({DdprunPath(), "logs", "-f", launch.run_dir()}, launch.folder());
  std::ofstream(state + "/go") << "";
  const std::string shown = logs.ReadAll();
  EXPECT_EQ(logs.Wait(20), 0) << logs.Error();
  EXPECT_EQ(launch.Wait().exit_code, 0);
  for (int rank = 0; rank < 2; ++rank) {
    std::string expected;
    for (int generation = 1; generation <= 2; ++generation) {
      const std::string log = launch.run_dir() + "/logs/g" + std::to_string(generation) + "/rank" +
                              std::to_string(rank) + ".log";
      EXPECT_TRUE(fs::exists(log + ".2"));
      expected += WholeLog(log);
    }
    EXPECT_TRUE(LinesOf(shown, rank) == expected) << "rank " << rank;
  }
}

TEST(Logs, LogsMergesByTimeAndTakesRanksTailAndGeneration) {
  // Each rank waits for the one before it, so that the order is known; 30 ms are more than the
  // index's grain.
  Launch launch(Mode::kTogether, 3,
                Shell("d=$DDPRUN_STATE_DIR; [ $RANK = 2 ] || while [ ! -e $d/$((RANK+1)) ]; do "
                      "sleep 0.01; done; echo first of $RANK; echo second of $RANK; sleep 0.03; "
                      "touch $d/$RANK"));
  ASSERT_EQ(launch.Wait().exit_code, 0);
  const auto logs = [&](std::vector<std::string> options) {
    std::vector<std::string> command = {DdprunPath(), "logs"};
    command.insert(command.end(), options.begin(), options.end());
    Piped piped(command, launch.folder());
    std::string text = piped.ReadAll();
    EXPECT_EQ(piped.Wait(10), 0) << piped.Error();
    return std::regex_replace(text, std::regex("\\[[^:\\]]+:"), "[n:");
  };
  EXPECT_EQ(logs({"run"}),
            "[n:2] first of 2\n[n:2] second of 2\n[n:1] first of 1\n[n:1] second of 1\n"
            "[n:0] first of 0\n[n:0] second of 0\n");
  EXPECT_EQ(logs({"run", "--rank", "0,2", "--tail=1"}), "[n:2] second of 2\n[n:0] second of 0\n");
  EXPECT_EQ(logs({"-f", "run", "--generation", "1", "--rank", "1"}),
            "[n:1] first of 1\n[n:1] second of 1\n");
  EXPECT_EQ(logs({"run", "--since", "2001-01-01", "--ranks=1", "--tail", "1"}),
            "[n:1] second of 1\n");
  EXPECT_EQ(logs({"run", "--since", "@99999999999"}), "");
  Piped none({DdprunPath(), "logs", "run", "--rank", "1,5"}, launch.folder());
  none.ReadAll();
  EXPECT_EQ(none.Wait(10), 2);
  EXPECT_THAT(none.Error(), HasSubstr("has no log of rank 5; there are those of 0, 1, 2"));
}

TEST(Logs, LogsFollowingEndsWhenTheLauncherIsKilled) {
  Launch launch(Mode::kTogether, 1, Shell("echo begun; exec sleep 100"));
  ASSERT_GT(launch.WorkerPid(1, 0), 0);
  ASSERT_TRUE(WaitUntil([&] { return launch.Log(1, 0) == "begun\n"; }, 20));
  Piped logs({DdprunPath(), "logs", "--follow", "run"}, launch.folder());
  launch.Signal(SIGKILL);
  EXPECT_EQ(LinesOf(logs.ReadAll(), 0), "begun\n");
  EXPECT_EQ(logs.Wait(10), 0);
  EXPECT_THAT(logs.Error(), HasSubstr("the job does not run"));
}

TEST(Logs, LogsOfNothingIsBadUsage) {
  Folder folder;
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"no-such-job"},
                                             {"--tail", "x"},
                                             {"a", "b"},
                                             {"--since", "yesterdayish"},
                                             {"--rank", "-1"},
                                             {"--nproc", "2"}}) {
    std::vector<std::string> command = {DdprunPath(), "logs"};
    command.insert(command.end(), words.begin(), words.end());
    Piped piped(command, folder.path());
    EXPECT_EQ(piped.ReadAll(), "");
    EXPECT_EQ(piped.Wait(10), 2) << ::testing::PrintToString(words);
    EXPECT_THAT(piped.Error(), ::testing::StartsWith("ddprun: "));
  }
}

// S19: logs fill the disk of the run folder. The job is not disturbed, and how it ended is written
// down. Needs a mount, so root.
TEST(Logs, AFullDiskOfTheRunFolderLosesNeitherTheLastEventsNorTheResult) {
  std::string folder = "/tmp/ddprun-disk-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string run = folder + "/run";
  fs::create_directory(run);
  if (mount("tmpfs", run.c_str(), "tmpfs", 0, "size=4m") != 0) {
    fs::remove_all(folder);
    GTEST_SKIP() << "mounting a small tmpfs needs root";
  }
  {
    Launch launch(Mode::kTogether, 2,
                  Shell("head -c 6000000 /dev/zero; head -c 6000000 /dev/zero; "
                        "[ $DDPRUN_GENERATION = 2 ] || exit $((3 + RANK))",
                        {"--max-restarts", "1", "--redirects", "3"}),
                  run);
    const Finished finished = launch.Wait();
    EXPECT_EQ(finished.exit_code, 0) << finished.output;
    EXPECT_THAT(finished.output, HasSubstr("No space left on device"));
    EXPECT_EQ(launch.Result()["status"], "succeeded") << finished.output;
    EXPECT_EQ(launch.Result()["restarts"], 1);
    EXPECT_TRUE(launch.WaitForEvent("job_finished", 2, 1)) << finished.output;
    EXPECT_EQ(fs::exists(run + "/.reserve"), false);
  }
  umount2(run.c_str(), MNT_DETACH);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace ddprun::testing
