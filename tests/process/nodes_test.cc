// The same command on each node, several nodes on this machine: who hosts, who joins, what each of
// them ends with.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/process/launch.h"
#include "tests/process/rows_program.h"

namespace ddprun::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

class Nodes : public ::testing::Test {
 protected:
  Nodes() : port_(FreePort()) {}

  // One that was free a moment ago: every node has to be told the same.
  static int FreePort() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    close(fd);
    return ntohs(address.sin_port);
  }
  std::string Endpoint() const { return "127.0.0.1:" + std::to_string(port_); }

  std::unique_ptr<Program> Start(const Words& options, const std::string& script,
                                 std::map<std::string, std::string> environment = {}) {
    Words command = {DdprunPath()};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"--run-dir", "r", "--", "/bin/bash", "-c", script});
    environment.emplace("DDPRUN_SECRET", "of the tests alone");
    return std::make_unique<Program>(command, folder_.path(), Program::Where::kBackground,
                                     environment);
  }
  // A node on this machine.
  std::unique_ptr<Program> Node(const std::string& name, const std::string& nodes, Words more,
                                const std::string& script) {
    more.insert(more.end(), {"--nnodes", nodes, "--coordinator", Endpoint(), "--advertise-addr",
                             "127.0.0.1", "--node", name});
    return Start(more, script);
  }
  std::vector<Json> Events(const std::string& name) const {
    std::vector<Json> events;
    std::istringstream lines(ReadText(folder_.path() + "/r/events.jsonl"));
    std::string line;
    while (std::getline(lines, line)) {
      Json event = Json::parse(line, nullptr, false);
      if (event.is_object() && event["event"] == name) events.push_back(std::move(event));
    }
    return events;
  }
  bool Generation(size_t number, int world_size) const {
    return WaitUntil(
        [&] {
          for (const Json& e : Events("generation_started")) {
            if (e["generation"] >= number && e["world_size"] == world_size) return true;
          }
          return false;
        },
        30);
  }
  std::string Log(int rank) const {
    return ReadText(folder_.path() + "/r/logs/g1/rank" + std::to_string(rank) + ".log");
  }
  bool AnyRunFolder() const {
    return fs::exists(folder_.path() + "/r") || fs::exists(folder_.path() + "/runs");
  }

  ScratchFolder folder_;
  int port_;
};

constexpr char kFacts[] =
    "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
    "$MASTER_ADDR [$DDPRUN_SECRET]";

// S22: uneven numbers of workers. The secret is no worker's.
TEST_F(Nodes, TheSameCommandOnEachNodeMakesOneJob) {
  auto a = Node("a", "2", {"--nproc", "2"}, kFacts);
  ASSERT_TRUE(a->Says("node a at 127.0.0.1 has joined (1 of 2)")) << a->Output();
  auto b = Node("b", "2", {"--nproc", "3"}, "echo the host says what runs; exit 1");
  EXPECT_EQ(a->Wait(), 0) << a->Output();
  EXPECT_EQ(b->Wait(), 0) << b->Output();
  const char* expected[] = {"0/5 0/2 0/2", "1/5 1/2 0/2", "2/5 0/3 1/2", "3/5 1/3 1/2",
                            "4/5 2/3 1/2"};
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(Log(rank), expected[rank] + std::string(" 127.0.0.1 []\n"));
  }
  EXPECT_THAT(a->Output(), HasSubstr("hosts the coordinator at " + Endpoint()));
  EXPECT_THAT(b->Output(), HasSubstr("offers 3 workers to " + Endpoint()));
}

// L41: all at once, and in any order: one of them hosts.
TEST_F(Nodes, StartedAtOnceOneHostsAndTheOthersJoin) {
  std::vector<std::unique_ptr<Program>> nodes;
  for (const char* name : {"a", "b", "c"}) nodes.push_back(Node(name, "3", {}, kFacts));
  int hosts = 0;
  for (auto& node : nodes) {
    EXPECT_EQ(node->Wait(), 0) << node->Output();
    hosts += node->Output().find("hosts the coordinator") != std::string::npos;
  }
  EXPECT_EQ(hosts, 1);
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(Log(rank), HasSubstr("/3 0/1"));
}

// L48: torchrun's words, on the command line and as variables; the rank says who hosts.
TEST_F(Nodes, TorchrunsSpellingsWorkOverSeveralNodes) {
  const Words common = {"--nnodes=2", "--master_addr=127.0.0.1",
                        "--master_port=" + std::to_string(port_), "--local_addr=127.0.0.1",
                        "--rdzv-id=j"};
  Words second = common;
  second.insert(second.end(), {"--node_rank=1", "--node=b"});
  auto b = Start(second, kFacts);
  ASSERT_TRUE(b->Says("offers 1 worker")) << b->Output();
  auto a = Start({"--node=a"}, kFacts,
                 {{"PET_NNODES", "2"},
                  {"PET_NODE_RANK", "0"},
                  {"PET_MASTER_ADDR", "127.0.0.1"},
                  {"PET_MASTER_PORT", std::to_string(port_)},
                  {"PET_LOCAL_ADDR", "127.0.0.1"},
                  {"PET_RDZV_ID", "j"}});
  EXPECT_EQ(a->Wait(), 0) << a->Output();
  EXPECT_EQ(b->Wait(), 0) << b->Output();
  EXPECT_EQ(Log(0), "0/2 0/1 0/2 127.0.0.1 []\n");
  EXPECT_EQ(Log(1), "1/2 0/1 1/2 127.0.0.1 []\n");
  EXPECT_THAT(a->Output(), HasSubstr("node a at 127.0.0.1 (lo) hosts"));
}

// L39, S16: who is missing is said, the wait is bounded, and all that came end with the same code.
TEST_F(Nodes, MissingNodesEndTheWaitOnAllNodes) {
  auto a = Node("a", "3", {"--join-timeout", "3"}, kFacts);
  ASSERT_TRUE(a->Says("(1 of 3)")) << a->Output();
  auto b = Node("b", "3", {"--join-timeout", "30"}, kFacts);
  EXPECT_TRUE(b->Says("waiting: 2 of 3 nodes are here: a, b")) << b->Output();
  EXPECT_EQ(a->Wait(), 3) << a->Output();
  EXPECT_EQ(b->Wait(), 3) << b->Output();
  EXPECT_THAT(a->Output(), AllOf(HasSubstr("node b at 127.0.0.1 has joined (2 of 3)"),
                                 HasSubstr("nodes_missing")));
}

// R8, S16: more than are wanted are spares.
TEST_F(Nodes, ASurplusNodeIsASpare) {
  const std::string script = "until [ -e go ]; do sleep 0.05; done";
  auto a = Node("a", "2", {}, script);
  ASSERT_TRUE(a->Says("(1 of 2)")) << a->Output();
  auto b = Node("b", "2", {}, script);
  ASSERT_TRUE(Generation(1, 2)) << a->Output();
  auto c = Node("c", "2", {}, script);
  EXPECT_TRUE(a->Says("node c at 127.0.0.1 has joined as a spare")) << a->Output();
  EXPECT_TRUE(c->Says("this node is a spare: 2 of 2 nodes run")) << c->Output();
  std::ofstream(folder_ / "go") << "";
  for (auto* node : {a.get(), b.get(), c.get()}) EXPECT_EQ(node->Wait(), 0) << node->Output();
  EXPECT_EQ(Events("generation_started").size(), 1u);
}

// L59: exit codes are the job's, on every node.
TEST_F(Nodes, EveryNodeEndsWithTheCodeOfTheJob) {
  for (const auto& [script, code] :
       std::map<std::string, int>{{"[ $RANK = 1 ] && exit 7; exec sleep 600", 7},
                                  {"[ $RANK = 1 ] && kill -KILL $$; exec sleep 600", 137}}) {
    fs::remove_all(folder_ / "r");
    port_ = FreePort();
    auto a = Node("a", "2", {"--max-restarts", "0"}, script);
    ASSERT_TRUE(a->Says("(1 of 2)")) << a->Output();
    auto b = Node("b", "2", {}, script);
    EXPECT_EQ(a->Wait(), code) << a->Output();
    EXPECT_EQ(b->Wait(), code) << b->Output();
  }
}

// L59: a lost node is no success of those that are left.
TEST_F(Nodes, ALostNodeIsTheCodeOfTheOthers) {
  const Words policy = {"--max-restarts", "0", "--lease", "1", "--join-timeout", "2"};
  auto a = Node("a", "3", policy, "exec sleep 600");
  ASSERT_TRUE(a->Says("(1 of 3)")) << a->Output();
  auto b = Node("b", "3", {}, "");
  auto c = Node("c", "3", {}, "");
  ASSERT_TRUE(Generation(1, 3)) << a->Output();
  c->Signal(SIGKILL);
  EXPECT_EQ(a->Wait(), 4) << a->Output();
  EXPECT_EQ(b->Wait(), 4) << b->Output();
}

// L35, R6: nodes leave and come back, as often as they like, free of charge.
TEST_F(Nodes, ANodeLeavesAndComesBackTenTimes) {
  const std::string script = "trap 'exit 0' TERM; until [ -e go ]; do sleep 0.05; done";
  auto a = Node("a", "1:2", {"--max-restarts", "0", "--grace", "10"}, script);
  ASSERT_TRUE(Generation(1, 1)) << a->Output();
  for (int turn = 0; turn < 10; ++turn) {
    const size_t before = Events("generation_started").size();
    auto b = Node("b", "1:2", {}, "");
    ASSERT_TRUE(Generation(before + 1, 2)) << turn << a->Output() << b->Output();
    const size_t together = Events("generation_started").size();
    b->Signal(SIGTERM);
    EXPECT_EQ(b->Wait(), 143) << b->Output();
    ASSERT_TRUE(Generation(together + 1, 1)) << turn << a->Output();
  }
  std::ofstream(folder_ / "go") << "";
  EXPECT_EQ(a->Wait(), 0) << a->Output();
}

// L46: whatever is wrong with the command leaves no run folder.
TEST_F(Nodes, WhatCannotWorkIsRefusedBeforeAnythingIsMade) {
  auto loopback = Start({"--nnodes", "2", "--coordinator", Endpoint()}, "");
  EXPECT_EQ(loopback->Wait(), 2);
  EXPECT_THAT(loopback->Output(), HasSubstr("only this machine reaches 127.0.0.1"));
  auto open = Start({"--nnodes", "2", "--coordinator", "10.0.0.1:7"}, "", {{"DDPRUN_SECRET", ""}});
  EXPECT_EQ(open->Wait(), 2);
  EXPECT_THAT(open->Output(), HasSubstr("DDPRUN_SECRET"));
  auto nameless =
      Start({"--nnodes", "2", "--coordinator", "bogus.invalid:7", "--join-timeout", "0.1"}, "");
  EXPECT_EQ(nameless->Wait(), 3);
  EXPECT_THAT(nameless->Output(), HasSubstr("bogus.invalid has no address"));
  EXPECT_FALSE(AnyRunFolder());
}

// S16.
TEST_F(Nodes, WhoDoesNotKnowTheSecretStaysOutAndDisturbsNobody) {
  auto a = Node("a", "2", {}, kFacts);
  ASSERT_TRUE(a->Says("(1 of 2)")) << a->Output();
  auto stranger = Start({"--nnodes", "2", "--coordinator", Endpoint(), "--advertise-addr",
                         "127.0.0.1", "--node", "x"},
                        "", {{"DDPRUN_SECRET", "another one altogether"}});
  EXPECT_EQ(stranger->Wait(), 2) << stranger->Output();
  EXPECT_THAT(stranger->Output(), HasSubstr("secret"));
  auto twin = Node("a", "2", {}, "");
  EXPECT_EQ(twin->Wait(), 2) << twin->Output();
  EXPECT_THAT(twin->Output(), AllOf(HasSubstr("refused"), HasSubstr("--node")));
  auto b = Node("b", "2", {}, "");
  EXPECT_EQ(a->Wait(), 0) << a->Output();
  EXPECT_EQ(b->Wait(), 0) << b->Output();
  EXPECT_THAT(a->Output(), Not(HasSubstr("another one altogether")));
}

// The same command with --resume on each node goes on.
TEST_F(Nodes, AJobOfSeveralNodesIsResumed) {
  const std::string script = "[ -e go ] || exit 7; " + std::string(kFacts);
  for (const bool again : {false, true}) {
    Words more = {"--max-restarts", "0"};
    if (again) more.emplace_back("--resume");
    auto a = Node("a", "2", more, script);
    ASSERT_TRUE(a->Says("(1 of 2)")) << a->Output();
    auto b = Node("b", "2", more, script);
    EXPECT_EQ(a->Wait(), again ? 0 : 7) << a->Output();
    EXPECT_EQ(b->Wait(), again ? 0 : 7) << b->Output();
    std::ofstream(folder_ / "go") << "";
  }
  EXPECT_THAT(ReadText(folder_ / "r/logs/g2/rank1.log"), HasSubstr("1/2"));
}

TEST_F(Nodes, DryRunShowsWhoANodeWouldBe) {
  auto host = Node("a", "2", {"--dry-run"}, "");
  EXPECT_EQ(host->Wait(), 0);
  EXPECT_THAT(host->Output(), AllOf(HasSubstr("node: a at 127.0.0.1 (lo)"),
                                    HasSubstr("coordinator: here, listening on " + Endpoint()),
                                    HasSubstr("ranks: on 2 nodes, on each ")));
  auto member = Start({"--nnodes", "2", "--coordinator", "192.0.2.1:7", "--advertise-addr",
                       "127.0.0.1", "--dry-run"},
                      "");
  EXPECT_EQ(member->Wait(), 0);
  EXPECT_THAT(member->Output(), HasSubstr("coordinator: elsewhere, at 192.0.2.1:7"));
  EXPECT_FALSE(AnyRunFolder());
}

}  // namespace
}  // namespace ddprun::testing
