// libddprun in real processes: how they end, what their children get, what init makes of a broken
// environment.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/unit/client_keeper.h"

namespace ddprun {
namespace {

std::string Child() {
  return std::filesystem::path(getenv("DDPRUN_BIN")).parent_path() / "tests" / "client_child";
}

// Reads what is in a pipe whose writers are gone.
std::string Drain(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = read(fd, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
}

struct Ended {
  int status;
  double seconds;
};

Ended Measure(int pid) {
  const auto start = std::chrono::steady_clock::now();
  const int status = WaitFor(pid);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return {status, spent.count()};
}

class BlockedWorker : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe2(output_, O_CLOEXEC), 0);
    pid_ = Spawn(keeper_, Child(), {GetParam()}, {}, output_[1]);
    close(output_[1]);
    EXPECT_EQ(keeper_.Receive()["TYPE"], "Hello");
    Packet packet = keeper_.Receive();  // Ready or Await: it blocks, or will in an instant
    EXPECT_FALSE(packet.empty());
  }
  void TearDown() override { close(output_[0]); }

  FakeKeeper keeper_;
  int pid_ = -1;
  int output_[2];
};

// D1: survivors of a lost peer leave at once, whatever they are blocked in.
TEST_P(BlockedWorker, AnAbortEndsItWithinHalfASecond) {
  keeper_.Send({{"TYPE", "Abort"}, {"REASON", "rank 1 died"}});
  const Ended ended = Measure(pid_);
  EXPECT_TRUE(WIFEXITED(ended.status));
  EXPECT_EQ(WEXITSTATUS(ended.status), 1);
  EXPECT_LT(ended.seconds, 0.5);
  EXPECT_EQ(Drain(output_[0]), "");  // buffers are not flushed
}

// A4: nothing outlives the keeper.
TEST_P(BlockedWorker, TheEndOfTheKeeperEndsIt) {
  keeper_.Close();
  const Ended ended = Measure(pid_);
  EXPECT_TRUE(WIFEXITED(ended.status));
  EXPECT_EQ(WEXITSTATUS(ended.status), 1);
  EXPECT_LT(ended.seconds, 0.5);
}

INSTANTIATE_TEST_SUITE_P(Where, BlockedWorker, testing::Values("block", "await"),
                         [](const auto& test) { return std::string(test.param); });

TEST(ClientProcess, AnAbortEndsAWorkerThatWaitsAtAnEdge) {
  FakeKeeper keeper;
  const int pid = Spawn(keeper, Child(), {"edge"});
  EXPECT_EQ(keeper.ReceiveType("Await")["NAME"], "go");
  keeper.Send({{"TYPE", "EdgeRequest"}, {"ID", "1"}, {"PURPOSE", "stop"}});
  EXPECT_EQ(keeper.ReceiveType("Edge")["STEP"], "1");
  // The worker takes its step only now that the edge is promised.
  keeper.Send({{"TYPE", "Value"}, {"GROUP", "world"}, {"NAME", "go"}, {"VALUE", ""}});
  EXPECT_EQ(keeper.ReceiveType("Progress")["STEP"], "1");
  keeper.Send({{"TYPE", "Abort"}, {"REASON", "rank 1 died"}});
  const Ended ended = Measure(pid);
  EXPECT_TRUE(WIFEXITED(ended.status));
  EXPECT_EQ(WEXITSTATUS(ended.status), 1);  // it would be 7 had it passed the edge
  EXPECT_LT(ended.seconds, 0.5);
}

TEST(ClientProcess, AForkedChildIsNotTheWorkerAndNothingOfItArrives) {
  FakeKeeper keeper;
  const int pid = Spawn(keeper, Child(), {"fork"});
  EXPECT_EQ(keeper.Receive()["TYPE"], "Hello");
  EXPECT_EQ(keeper.Receive()["TYPE"], "Finished");  // of the parent; nothing between
  EXPECT_EQ(WaitFor(pid), 0);
  EXPECT_STRNE(static_cast<const char*>(keeper.page()) + 120, "child");
}

TEST(ClientProcess, DescriptorsAndVariablesStayInTheWorker) {
  FakeKeeper keeper;
  const int pid =
      Spawn(keeper, Child(), {"hygiene"},
            {"RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "DDPRUN_RUN_DIR=/r",
             "DDPRUN_RESUME_FROM=/r/checkpoints/step-7", "DDPRUN_RESUME_STEP=7"});
  EXPECT_EQ(WaitFor(pid), 0);
}

TEST(ClientProcess, SignalsGoToTheProgramsOwnThreads) {
  FakeKeeper keeper;
  EXPECT_EQ(WaitFor(Spawn(keeper, Child(), {"signals"})), 0);
}

// C1: a full disk costs the checkpoint, not the job, and leaves no broken file.
TEST(ClientProcess, AFullDiskFailsTheCheckpointAndLeavesNoFile) {
  FakeKeeper keeper;
  TemporaryFolder folder;
  const int pid = Spawn(keeper, Child(), {"disk_full"}, {"DDPRUN_RUN_DIR=" + folder.path()});
  EXPECT_EQ(WaitFor(pid), 0);
  Packet failed = keeper.ReceiveType("CheckpointFailed");
  EXPECT_EQ(failed["STEP"], "1");
  EXPECT_NE(failed["REASON"].find("w.bin.tmp.0"), std::string::npos);
}

std::string InitSays(const std::vector<std::string>& variables) {
  FakeKeeper keeper;
  int output[2];
  EXPECT_EQ(pipe2(output, O_CLOEXEC), 0);
  const int pid = Spawn(keeper, Child(), {"init"}, variables, output[1]);
  close(output[1]);
  EXPECT_EQ(WaitFor(pid), 0);
  std::string text = Drain(output[0]);
  close(output[0]);
  return text;
}

TEST(ClientInit, NamesWhatIsWrongWithTheEnvironment) {
  EXPECT_EQ(InitSays({}), "0 \n");
  EXPECT_EQ(InitSays({"RANK=1"}),
            "-2 RANK is '1', expected a number from 0 to 0: the environment of the launcher was "
            "changed\n");
  EXPECT_NE(InitSays({"WORLD_SIZE=x"}).find("-2 WORLD_SIZE is 'x'"), std::string::npos);
  EXPECT_NE(InitSays({"DDPRUN_GENERATION="}).find("-2 DDPRUN_GENERATION"), std::string::npos);
  EXPECT_NE(InitSays({"DDPRUN_SOCKET_FD=4"}).find("-2 DDPRUN_SOCKET_FD: descriptor 4 is not"),
            std::string::npos);
  EXPECT_NE(InitSays({"DDPRUN_SOCKET_FD=77"}).find("-2 DDPRUN_SOCKET_FD: descriptor 77 is not"),
            std::string::npos);
  EXPECT_NE(InitSays({"DDPRUN_PAGE_FD=3"}).find("-2 DDPRUN_PAGE_FD: descriptor 3 is not a page"),
            std::string::npos);
  EXPECT_NE(InitSays({"DDPRUN_RESUME_FROM=/x"}).find("-2 DDPRUN_RESUME_STEP is ''"),
            std::string::npos);
}

TEST(ClientInit, WithoutTheSocketTheProgramRunsByHand) {
  EXPECT_EQ(InitSays({"DDPRUN_SOCKET_FD=", "RANK=3"}), "0 \n");
}

}  // namespace
}  // namespace ddprun
