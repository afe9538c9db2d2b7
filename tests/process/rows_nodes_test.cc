// Rows of the reported troubles about several nodes, as far as they hold with several agents on one
// machine, over TCP on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "launcher/net/listener.h"
#include "tests/process/launch.h"
#include "tests/process/rows_program.h"

namespace ddprun::testing {
namespace {

// Several nodes need one; the programs that tests start inherit it.
[[maybe_unused]] const int kSecretIsSet = setenv("DDPRUN_SECRET", "of the tests alone", 1);

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A coordinator and its first agent with two workers; a second agent n2 brings two more.
class RowsNodes : public ::testing::Test {
 protected:
  void Begin(const std::string& script, std::vector<std::string> options) {
    options.insert(options.end(), {"--", "/bin/bash", "-c", script});
    launch_ = std::make_unique<Launch>(Mode::kApart, 2, options);
    ASSERT_TRUE(launch_->WaitFor([](const Json& e) { return e["event"] == "node_joined"; }, 20));
    second_ = launch_->AddAgent(2, {"--node", "n2"});
  }
  std::vector<pid_t> Workers(int generation, int count) {
    std::vector<pid_t> pids(count);
    for (int rank = 0; rank < count; ++rank) pids[rank] = launch_->WorkerPid(generation, rank);
    return pids;
  }
  std::unique_ptr<Launch> launch_;
  pid_t second_ = 0;
};

// L24, L27, L28, L44, L66: a segfault on one node ends the generation on all of them within two
// seconds; one number of the generation everywhere, one restart charged.
TEST_F(RowsNodes, AFailureOnOneNodeEndsAllAtOnceAndCountsOnce) {
  Begin("echo generation $DDPRUN_GENERATION restart $TORCHELASTIC_RESTART_COUNT; exec sleep 600",
        {"--nnodes", "2", "--max-restarts", "1"});
  for (int generation : {1, 2}) {
    const std::vector<pid_t> pids = Workers(generation, 4);
    ASSERT_GT(*std::min_element(pids.begin(), pids.end()), 0);
    const std::string expected = "generation " + std::to_string(generation) + " restart " +
                                 std::to_string(generation - 1) + "\n";
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(WaitUntil([&] { return launch_->Log(generation, rank) == expected; }, 20))
          << rank << ": " << launch_->Log(generation, rank);
    }
    const auto died = Clock::now();
    // Once on each node.
    ASSERT_EQ(kill(pids[generation == 1 ? 3 : 0], SIGSEGV), 0);
    for (pid_t pid : pids) EXPECT_TRUE(WaitGone(pid, 10));
    EXPECT_LT(Clock::now() - died, std::chrono::seconds(2));
  }
  EXPECT_EQ(launch_->Wait(20).exit_code, 139);
  EXPECT_EQ(launch_->Result()["restarts"], 1);
}

// L3, L35, R6, S3, R3: one node leaves in order; the workers of the other have their grace, and the
// job goes on without it. It may come back.
TEST_F(RowsNodes, ANodeThatLeavesClosesNothing) {
  Begin(R"(trap 'sleep 0.5; touch $DDPRUN_STATE_DIR/saved-$DDPRUN_GENERATION-$RANK; exit 0' TERM
    touch $DDPRUN_STATE_DIR/up-$DDPRUN_GENERATION-$RANK
    until [ -e $DDPRUN_STATE_DIR/go ]; do sleep 0.05; done)",
        {"--nnodes", "1:2", "--max-restarts", "5", "--grace", "20"});
  ASSERT_TRUE(launch_->WaitFor(
      [](const Json& e) { return e["event"] == "generation_started" && e["world_size"] == 4; },
      30));
  const int first = [&] {
    for (const Json& e : launch_->Events()) {
      if (e["event"] == "generation_started" && e["world_size"] == 4)
        return e["generation"].get<int>();
    }
    return 0;
  }();
  const std::string state = launch_->run_dir() + "/state/";
  for (int rank = 0; rank < 4; ++rank) {
    const std::string up = state + "up-" + std::to_string(first) + "-" + std::to_string(rank);
    ASSERT_TRUE(WaitUntil([&] { return fs::exists(up); }, 20));
  }
  kill(second_, SIGTERM);
  ASSERT_TRUE(launch_->WaitFor(
      [&](const Json& e) {
        return e["event"] == "generation_started" && e["generation"] > first &&
               e["world_size"] == 2;
      },
      30));
  for (const char* rank : {"0", "1"}) {
    EXPECT_TRUE(fs::exists(state + "saved-" + std::to_string(first) + "-" + rank)) << rank;
  }
  // Back again: it is welcome.
  const pid_t again = launch_->AddAgent(2, {"--node", "n2"});
  ASSERT_TRUE(WaitUntil(
      [&] {
        int joined = 0;
        for (const Json& e : launch_->Events())
          joined += e["event"] == "node_joined" && e["node"] == "n2";
        return joined == 2;
      },
      20));
  { std::ofstream(state + "go") << ""; }
  EXPECT_EQ(launch_->Wait(30).exit_code, 0);
  EXPECT_EQ(launch_->ExitCode(second_), 143);
  EXPECT_EQ(launch_->ExitCode(again), 0);
}

// L34, S10, R4, L37: an agent stands still. Its node is lost within lease + 1 s, and the world
// forms anew; its own workers end with their lease, and when it is continued it disturbs nobody.
TEST_F(RowsNodes, AnAgentThatStandsStillIsReplacedAndFenced) {
  Begin(
      "touch $DDPRUN_STATE_DIR/up-$DDPRUN_GENERATION-$RANK; until [ -e $DDPRUN_STATE_DIR/go ]; "
      "do sleep 0.05; done",
      {"--nnodes", "1:2", "--max-restarts", "5", "--lease", "1", "--grace", "1"});
  const auto world = launch_->WaitFor(
      [](const Json& e) { return e["event"] == "generation_started" && e["world_size"] == 4; }, 30);
  ASSERT_TRUE(world);
  const int first = (*world)["generation"];
  const std::vector<pid_t> pids = Workers(first, 4);
  ASSERT_GT(*std::min_element(pids.begin(), pids.end()), 0);
  kill(second_, SIGSTOP);
  const auto stopped = Clock::now();
  ASSERT_TRUE(launch_->WaitFor([](const Json& e) { return e["event"] == "node_lost"; }, 30));
  EXPECT_LT(Clock::now() - stopped, std::chrono::seconds(3)) << "lease and margin are 2 s";
  for (int rank : {2, 3}) EXPECT_TRUE(WaitGone(pids[rank], 0)) << "it could be replaced already";
  ASSERT_TRUE(launch_->WaitFor(
      [&](const Json& e) {
        return e["event"] == "generation_started" && e["generation"] > first &&
               e["world_size"] == 2;
      },
      30));
  kill(second_, SIGCONT);
  ASSERT_TRUE(WaitUntil(
      [&] {
        int joined = 0;
        for (const Json& e : launch_->Events())
          joined += e["event"] == "node_joined" && e["node"] == "n2";
        return joined == 2;
      },
      30));
  { std::ofstream(launch_->run_dir() + "/state/go") << ""; }
  EXPECT_EQ(launch_->Wait(30).exit_code, 0);
  EXPECT_EQ(launch_->ExitCode(second_), 0);
}

// L59: a lost node is no success.
TEST_F(RowsNodes, ALostNodeIsTheExitCode) {
  Begin("exec sleep 600",
        {"--nnodes", "2", "--max-restarts", "0", "--lease", "1", "--join-timeout", "2"});
  const std::vector<pid_t> pids = Workers(1, 4);
  ASSERT_GT(*std::min_element(pids.begin(), pids.end()), 0);
  kill(second_, SIGKILL);
  EXPECT_EQ(launch_->Wait(30).exit_code, 4);
  for (pid_t pid : pids) EXPECT_TRUE(WaitGone(pid, 2));
}

// L19, S13: an agent that hears nothing of its coordinator ends its workers with the lease, and
// says so in few words. (Its end after a minute is core_agent_test.cc's.)
TEST_F(RowsNodes, WithoutACoordinatorWorkersEndWithTheirLease) {
  Begin("trap '' TERM; while :; do sleep 0.1; done", {"--nnodes", "2", "--lease", "1"});
  const std::vector<pid_t> pids = Workers(1, 4);
  ASSERT_GT(*std::min_element(pids.begin(), pids.end()), 0);
  launch_->Signal(SIGKILL);
  for (pid_t pid : pids) EXPECT_TRUE(WaitGone(pid, 3));
  const std::string said = ReadText(launch_->folder() + "/agent-output-2");
  EXPECT_LE(std::count(said.begin(), said.end(), '\n'), 10) << said;
}

// ---- rendezvous

std::vector<std::string> Coordinator(const std::string& address, std::vector<std::string> options) {
  options.insert(options.begin(), {DdprunPath(), "coordinator", "--listen", address});
  options.insert(options.end(),
                 {"--", "/bin/bash", "-c", "echo $RANK of $WORLD_SIZE on $GROUP_RANK"});
  return options;
}
std::vector<std::string> Agent(const std::string& address, std::vector<std::string> options) {
  options.insert(options.begin(), {DdprunPath(), "agent", "--coordinator", address});
  return options;
}

// L38, L39, S16: an agent of another job is told why it may not join; when not enough come, who is
// here is said, and the end has a code of its own.
TEST(RowsRendezvous, AStrangerIsRefusedAndAMissingNodeIsToldAndBounded) {
  ScratchFolder folder;
  Program coordinator(Coordinator("127.0.0.1:0", {"--nnodes", "2", "--job-id", "right", "--run-dir",
                                                  "r", "--join-timeout", "2"}),
                      folder.path());
  const std::string address = coordinator.LineBehind("listening on ");
  Program stranger(Agent(address, {"--job-id", "wrong", "--node", "n9"}), folder.path());
  EXPECT_NE(stranger.Wait(10), 0);
  EXPECT_THAT(stranger.Output(),
              AllOf(HasSubstr("refused"), HasSubstr("right"), HasSubstr("wrong")));
  Program agent(Agent(address, {"--job-id", "right", "--node", "n1"}), folder.path());
  EXPECT_TRUE(coordinator.Says("n1 at 127.0.0.1 has joined (1 of 2)"));
  EXPECT_EQ(coordinator.Wait(10), 3) << coordinator.Output();
  EXPECT_NE(agent.Wait(10), -1);
}

// L48: the node that wishes to be first is, though it came last.
TEST(RowsRendezvous, NodeRanksAreAsWished) {
  ScratchFolder folder;
  Program coordinator(Coordinator("127.0.0.1:0", {"--nnodes", "2", "--run-dir", "r"}),
                      folder.path());
  const std::string address = coordinator.LineBehind("listening on ");
  Program second(Agent(address, {"--node", "a", "--node-rank", "1"}), folder.path());
  EXPECT_TRUE(coordinator.Says("node a at 127.0.0.1 has joined (1 of 2)"));
  Program first(Agent(address, {"--node", "b", "--node-rank", "0"}), folder.path());
  EXPECT_EQ(coordinator.Wait(20), 0) << coordinator.Output();
  EXPECT_EQ(first.Wait(10), 0);
  EXPECT_EQ(second.Wait(10), 0);
  EXPECT_THAT(first.Output(), HasSubstr("0 of 2 on 0\n"));
  EXPECT_THAT(second.Output(), HasSubstr("1 of 2 on 1\n"));
}

// L41: the agent may come before its coordinator.
TEST(RowsRendezvous, AnAgentWaitsForItsCoordinator) {
  ScratchFolder folder;
  // A port that was free a moment ago.
  std::string address;
  {
    Program probe(Coordinator("127.0.0.1:0", {"--run-dir", "probe"}), folder.path());
    address = probe.LineBehind("listening on ");
    probe.Signal(SIGTERM);
    EXPECT_EQ(probe.Wait(10), 143);
  }
  Program agent(Agent(address, {}), folder.path());
  EXPECT_TRUE(agent.Says("trying again for 10 min"));
  // Longer than gRPC takes to back off as far as it may.
  EXPECT_FALSE(WaitGone(agent.pid(), 1.5)) << "it did not wait";
  Program coordinator(Coordinator(address, {"--run-dir", "r"}), folder.path());
  ASSERT_TRUE(coordinator.Says("listening on "));
  const auto listening = Clock::now();
  EXPECT_EQ(coordinator.Wait(20), 0) << coordinator.Output();
  EXPECT_LT(Clock::now() - listening, std::chrono::seconds(3)) << "it was found late";
  EXPECT_EQ(agent.Wait(10), 0) << agent.Output();
}

// Why an agent is not let in, or cannot be, is one line, and nothing is said of trying again.
TEST(RowsRendezvous, AnAgentThatEndsSaysSoOnce) {
  ScratchFolder folder;
  auto listener = net::Listener::Open("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  int stop[2];
  ASSERT_EQ(pipe(stop), 0);
  std::thread other([&] {  // another server, which greets whoever has said something
    pollfd polls[] = {{listener->fds()[0], POLLIN, 0}, {stop[0], POLLIN, 0}};
    while (poll(polls, 2, -1) > 0 && polls[1].revents == 0) {
      const int fd = accept(listener->fds()[0], nullptr, nullptr);
      char bytes[256];
      if (recv(fd, bytes, sizeof bytes, 0) > 0) send(fd, "SSH-2.0-x\r\n", 11, MSG_NOSIGNAL);
      close(fd);
    }
  });
  Program lost(Agent("127.0.0.1:" + std::to_string(listener->port()), {}), folder.path());
  EXPECT_EQ(lost.Wait(20), 2);
  close(stop[1]);
  other.join();
  close(stop[0]);
  Program coordinator(Coordinator("127.0.0.1:0", {"--run-dir", "r"}), folder.path());
  const std::string address = coordinator.LineBehind("listening on ");
  Program stranger(Agent(address, {}), folder.path(), Program::Where::kBackground,
                   {{"DDPRUN_SECRET", "of somebody else"}});
  EXPECT_EQ(stranger.Wait(20), 2);
  for (const std::string& said : {lost.Output(), stranger.Output()}) {
    const size_t at = said.find("refused: ");
    ASSERT_NE(at, std::string::npos) << said;
    EXPECT_EQ(said.find('\n', at), said.size() - 1) << said;
    EXPECT_THAT(said, Not(HasSubstr("trying"))) << said;
  }
  EXPECT_THAT(lost.Output(), HasSubstr("is no ddprun coordinator"));
}

}  // namespace
}  // namespace ddprun::testing
