// Deaths and stops as a user of ddprun sees them: wrappers, unkillable processes, error files,
// secondary failures, taken ports, unhealthy nodes, memory limits.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using Json = nlohmann::json;

std::vector<std::string> Shell(const std::string& script, std::vector<std::string> options = {}) {
  options.insert(options.end(), {"--", "/bin/bash", "-c", script});
  return options;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// L4: a stop reaches what a shell wrapper has started.
TEST(StopsTest, NothingUnderAShellWrapperOutlivesAStop) {
  Launch launch(Mode::kTogether, 2,
                Shell("bash -c 'sleep 971 & echo $! > $DDPRUN_STATE_DIR/pid-$RANK; wait' & wait"));
  for (int rank = 0; rank < 2; ++rank) {
    const std::string file = launch.run_dir() + "/state/pid-" + std::to_string(rank);
    ASSERT_TRUE(WaitUntil([&] { return Has(ReadText(file), "\n"); }, 20));
  }
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(10).exit_code, 143);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string file = launch.run_dir() + "/state/pid-" + std::to_string(rank);
    EXPECT_NE(kill(std::stoi(ReadText(file)), 0), 0);
  }
}

// L62: the real traceback stands in the report and on the console, for the rank that failed.
TEST(StopsTest, TheErrorFileStandsInTheReport) {
  Launch launch(Mode::kTogether, 3,
                Shell(R"(if [ $RANK = 2 ]; then
      printf '{"message": {"message": "ValueError: label 12 is out of range", "extraInfo": {"py_callstack": "Traceback (most recent call last):\\n  File \\"train.py\\", line 9\\nValueError: label 12 is out of range\\n", "timestamp": "%s"}}}' $(date +%s) > $TORCHELASTIC_ERROR_FILE
      exit 1; fi; exec sleep 60)",
                      {"--max-restarts", "0"}));
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 1);
  const Json failure = launch.Result()["first_failure"];
  EXPECT_EQ(failure["rank"], 2) << failure;
  EXPECT_EQ(failure["error"]["message"], "ValueError: label 12 is out of range") << failure;
  EXPECT_TRUE(Has(failure["error"]["traceback"], "File \"train.py\", line 9"));
  EXPECT_TRUE(Has(finished.output, "label 12 is out of range")) << finished.output;
}

// L63, S6: ranks that lost a peer are secondary, though they ended before the one that failed.
TEST(StopsTest, RanksThatLostAPeerAreSecondaryEvenWhenTheyEndFirst) {
  Launch launch(
      Mode::kTogether, 4,
      Shell(
          R"(trap '' TERM; cd $DDPRUN_STATE_DIR; touch up-$RANK; until [ -e up-0 -a -e up-1 -a -e up-2 -a -e up-3 ]; do sleep 0.02; done
      if [ $RANK = 2 ]; then touch failing; until [ -e gone-0 -a -e gone-1 -a -e gone-3 ]; do sleep 0.02; done
        echo "Traceback (most recent call last):"; echo "KeyError: 'x'"; exit 7; fi
      until [ -e failing ]; do sleep 0.02; done
      echo "NCCL WARN Net : ncclRemoteError: remote process exited or there was a network error"; touch gone-$RANK; kill -ABRT $$)",
          {"--max-restarts", "0", "--grace", "10"}));
  const Finished finished = launch.Wait();
  EXPECT_EQ(launch.Result()["first_failure"]["rank"], 2) << launch.Result();
  EXPECT_EQ(finished.exit_code, 7) << finished.output;
  EXPECT_TRUE(Has(finished.output, "KeyError: 'x'")) << finished.output;
  for (const Json& event : launch.Events()) {
    if (event["event"] == "worker_exited" && event["rank"] != 2) {
      EXPECT_EQ(event["cause"], "secondary") << event;
    }
  }
}

// L56, S14: somebody has taken the port of rank 0: another one in a new generation, free of charge.
TEST(StopsTest, ATakenMasterPortCostsNothing) {
  Launch launch(Mode::kTogether, 2,
                Shell(R"(echo $MASTER_PORT > $DDPRUN_STATE_DIR/port-$DDPRUN_GENERATION
      if [ $DDPRUN_GENERATION = 1 ]; then
        if [ $RANK = 0 ]; then echo "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: $MASTER_PORT, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"; exit 1; fi
        exec sleep 60
      fi)",
                      {"--max-restarts", "0"}));
  EXPECT_EQ(launch.Wait().exit_code, 0) << launch.Result();
  EXPECT_EQ(launch.Result()["restarts"], 0);
  EXPECT_EQ(launch.Result()["generations"], 2);
  EXPECT_NE(ReadText(launch.run_dir() + "/state/port-1"),
            ReadText(launch.run_dir() + "/state/port-2"));
}

// A health check that fails: nothing is started, and the reason says what it said.
TEST(StopsTest, AnUnhealthyNodeStartsNothing) {
  Launch launch(Mode::kTogether, 2,
                Shell("touch $DDPRUN_STATE_DIR/started",
                      {"--max-restarts", "0", "--health-check", "echo the fan is broken; exit 9"}));
  const Finished finished = launch.Wait(30);
  EXPECT_NE(finished.exit_code, 0);
  EXPECT_TRUE(Has(finished.output, "the fan is broken")) << finished.output;
  EXPECT_FALSE(std::filesystem::exists(launch.run_dir() + "/state/started"));
}

TEST(StopsTest, AHealthyNodeStartsItsWorkers) {
  Launch launch(Mode::kTogether, 2,
                Shell("test -e $DDPRUN_RUN_DIR/checked",
                      {"--health-check", "touch $DDPRUN_RUN_DIR/checked"}));
  EXPECT_EQ(launch.Wait(30).exit_code, 0);
}

// A stop during the check comes at once (S24).
TEST(StopsTest, AStopDuringTheHealthCheckIsObeyedAtOnce) {
  Launch launch(
      Mode::kTogether, 2,
      Shell("true", {"--health-check", "touch $DDPRUN_RUN_DIR/checking; exec sleep 970"}));
  ASSERT_TRUE(
      WaitUntil([&] { return std::filesystem::exists(launch.run_dir() + "/checking"); }, 20));
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(5).exit_code, 143);
}

// S24, L7: a keeper that stands still holds up no stop.
TEST(StopsTest, AStoppedKeeperDoesNotHoldUpTheEnd) {
  for (const Mode mode : {Mode::kTogether, Mode::kApart}) {
    Launch launch(
        mode, 2,
        Shell("setsid sleep 972 & echo $! > $DDPRUN_STATE_DIR/pid-$RANK; wait", {"--grace", "3"}));
    std::vector<pid_t> pids;
    for (int rank = 0; rank < 2; ++rank) {
      const std::string file = launch.run_dir() + "/state/pid-" + std::to_string(rank);
      ASSERT_TRUE(WaitUntil([&] { return Has(ReadText(file), "\n"); }, 20));
      pids.push_back(std::stoi(ReadText(file)));
      pids.push_back(launch.WorkerPid(1, rank));
    }
    const pid_t keeper = launch.KeeperPid();
    ASSERT_GT(keeper, 0);
    ASSERT_EQ(kill(keeper, SIGSTOP), 0);
    launch.Signal(SIGTERM);
    EXPECT_EQ(launch.Wait(30).exit_code, 143);
    pids.push_back(keeper);
    for (pid_t pid : pids) EXPECT_TRUE(WaitGone(pid, 2)) << pid;
  }
}

// The same where it is another node's worker that ends the generation: the next one starts.
TEST(StopsTest, AStoppedKeeperDoesNotHoldUpTheNextGeneration) {
  Launch launch(Mode::kApart, 1,
                Shell("[ $DDPRUN_GENERATION = 1 ] || exit 0; exec sleep 973",
                      {"--nnodes", "2", "--grace", "3", "--lease", "20"}));
  launch.AddAgent(1, {"--node", "second"});
  for (int rank = 0; rank < 2; ++rank) ASSERT_GT(launch.WorkerPid(1, rank), 0);
  const auto other = launch.WaitFor(
      [](const Json& e) { return e["event"] == "worker_started" && e["node"] == "second"; }, 20);
  ASSERT_TRUE(other);
  const pid_t keeper = launch.KeeperPid();  // of the first agent
  ASSERT_GT(keeper, 0);
  ASSERT_EQ(kill(keeper, SIGSTOP), 0);
  kill((*other)["pid"].get<pid_t>(), SIGKILL);
  EXPECT_EQ(launch.Wait(60).exit_code, 0);
  EXPECT_EQ(launch.Result()["generations"], 2) << launch.Result();
}

// A process frozen by a freezer cgroup takes SIGKILL only when it is thawed.
class Freezer {
 public:
  Freezer() {
    folder_ = "/sys/fs/cgroup/freezer/ddprun-test-" + std::to_string(getpid());
    good_ = mkdir(folder_.c_str(), 0755) == 0;
  }
  ~Freezer() {
    if (!good_) return;
    Write("freezer.state", "THAWED");
    WaitUntil([&] { return rmdir(folder_.c_str()) == 0; }, 10);
  }
  bool good() const { return good_; }
  bool Freeze(pid_t pid) {
    if (!Write("cgroup.procs", std::to_string(pid)) || !Write("freezer.state", "FROZEN"))
      return false;
    return WaitUntil([&] { return ReadText(folder_ + "/freezer.state") == "FROZEN\n"; }, 5);
  }

 private:
  bool Write(const std::string& name, const std::string& text) {
    std::ofstream out(folder_ + "/" + name);
    out << text << std::flush;
    return out.good();
  }
  std::string folder_;
  bool good_ = false;
};

// L7: a process that SIGKILL does not end is named, and holds nobody up for ever.
TEST(StopsTest, AnUnkillableProcessIsNamedAndTheJobEnds) {
  Freezer freezer;
  if (!freezer.good()) GTEST_SKIP() << "no freezer cgroup can be made here (v1, needs root)";
  Launch launch(Mode::kTogether, 2,
                Shell("test $RANK = 0 && exec sleep 969; until [ -e $DDPRUN_STATE_DIR/frozen ]; do "
                      "sleep 0.02; done; exit 5",
                      {"--grace", "1"}));
  const pid_t pid = launch.WorkerPid(1, 0);
  ASSERT_GT(pid, 0);
  ASSERT_TRUE(freezer.Freeze(pid));
  std::ofstream(launch.run_dir() + "/state/frozen") << "";
  const Finished finished = launch.Wait(40);
  EXPECT_NE(finished.exit_code, 0);
  EXPECT_TRUE(Has(finished.output, std::to_string(pid))) << finished.output;
  bool named = false;
  for (const Json& event : launch.Events()) {
    if (event["event"] != "worker_unkillable") continue;
    for (const Json& one : event["pids"]) named = named || one == pid;
  }
  EXPECT_TRUE(named);
}

}  // namespace
}  // namespace ddprun::testing
