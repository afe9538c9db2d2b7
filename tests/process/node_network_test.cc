// What a node does about its network before and after a generation: addresses that its workers are
// going to use are tried first; a port is held for rank 0; the environment is the node's own. Links
// that are cut or lead nowhere are made in network namespaces (needs root).
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "launcher/agent/reachability.h"
#include "tests/process/node_harness.h"

namespace ddprun::testing {
namespace {

using agent::PreparationResult;
using agent::ReachabilityCheck;

int64_t BootNow() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

PreparationResult RunStep(agent::PreparationStep& step) {
  for (;;) {
    PreparationResult result = step.Advance(BootNow());
    if (result.state != PreparationResult::State::kWorking) return result;
    std::vector<pollfd> polls;
    step.AddPolls(&polls);
    const int64_t left_ms = (step.NextDeadlineNs() - BootNow()) / 1'000'000 + 1;
    poll(polls.data(), polls.size(), static_cast<int>(std::max<int64_t>(left_ms, 0)));
  }
}

// Runs `body` in a network namespace of its own, in which the shell commands were done. False: this
// machine gives none.
bool InNamespace(const std::string& commands, const std::function<void()>& body) {
  bool made = false;
  std::thread inside([&] {
    made = unshare(CLONE_NEWNET) == 0 && std::system(commands.c_str()) == 0;
    if (made) body();
  });
  inside.join();
  return made;
}

// v1 is a card of the same namespace that takes packets and answers none.
constexpr char kSilentLink[] =
    "ip link set lo up && ip link add v0 type veth peer name v1 && ip addr add 10.9.0.1/24 dev v0 "
    "&& ip link set v0 up && ip link set v1 up && "
    "ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev v0";

// Two nodes; this one has group rank 1.
void MakeSecondOfTwo(Node& node, const std::string& first_address) {
  node.order().set_group_rank(1);
  node.order().set_group_world_size(2);
  node.order().set_first_rank(1);
  node.order().set_world_size(2);
  node.order().set_master_address(first_address);
  node.order().set_master_port(29500);
  node.order().set_next_address(first_address);
  for (uint32_t i = 0; i < 2; ++i) {
    v1::NodePlace* place = node.order().add_nodes();
    place->set_node(i == 0 ? "first" : "n1");
    place->set_address(i == 0 ? first_address : "10.9.0.1");
    place->set_first_rank(i);
    place->set_count(1);
  }
  node.spec().mutable_membership()->set_address_check_seconds(0.3);
  node.own().address = "10.9.0.1";
  node.own().interface = "v0";
}

TEST(ReachabilityCheck, ARefusedConnectionIsAnAnswer) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);  // bound, and nobody listens
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const uint32_t port = ntohs(address.sin_port);
  ReachabilityCheck refused({{"node a", "127.0.0.1", port}}, {"n1", "127.0.0.1", "lo"}, 5);
  EXPECT_EQ(RunStep(refused).state, PreparationResult::State::kReady);
  ASSERT_EQ(listen(fd, 1), 0);
  ReachabilityCheck accepted({{"node a", "127.0.0.1", port}}, {"n1", "127.0.0.1", "lo"}, 5);
  EXPECT_EQ(RunStep(accepted).state, PreparationResult::State::kReady);
  close(fd);
}

TEST(ReachabilityCheck, RankZeroIsTriedByAllOthersAndTheNextNodeByEach) {
  v1::StartWorkers order;
  order.set_group_world_size(3);
  order.set_master_address("a-name-that-somebody-typed");
  order.set_master_port(7);
  for (const char* address : {"10.0.0.1", "10.0.0.2", "10.0.0.3"}) {
    order.add_nodes()->set_address(address);
  }
  const auto addresses = [&order](uint32_t group_rank) {
    order.set_group_rank(group_rank);
    order.set_next_address(order.nodes(static_cast<int>((group_rank + 1) % 3)).address());
    std::vector<std::string> found;
    for (const auto& target : agent::ReachabilityTargets(order)) found.push_back(target.address);
    return found;
  };
  EXPECT_EQ(addresses(0), (std::vector<std::string>{"10.0.0.2"}));
  EXPECT_EQ(addresses(1), (std::vector<std::string>{"10.0.0.1", "10.0.0.3"}));
  EXPECT_EQ(addresses(2), (std::vector<std::string>{"10.0.0.1"}));
}

TEST(ReachabilityCheck, ACancelEndsIt) {
  const bool made = InNamespace(kSilentLink, [] {
    ReachabilityCheck check({{"node a", "10.9.0.2", 29500}}, {"n1", "10.9.0.1", "v0"}, 600);
    EXPECT_EQ(check.Advance(BootNow()).state, PreparationResult::State::kWorking);
    check.Cancel();
    EXPECT_EQ(check.Advance(BootNow()).state, PreparationResult::State::kFailed);
  });
  if (!made) GTEST_SKIP() << "needs root and iproute2";
}

// L47: an address that no peer reaches is named before any worker waits for it.
TEST(NodeNetwork, SilenceMakesTheNodeUnfitAndNamesBothAddresses) {
  const bool made = InNamespace(kSilentLink, [] {
    Node node(1, "exit 0");
    MakeSecondOfTwo(node, "10.9.0.2");
    node.Begin();
    ASSERT_TRUE(node.RunToEnd());
    ASSERT_EQ(node.facts().size(), 1u);
    const std::string reason = node.facts()[0].node_unhealthy().reason();
    for (const char* part :
         {"node n1", "10.9.0.1 on card v0", "node first (rank 0) at 10.9.0.2:29500",
          "no answer within 0.3 s", "--advertise-addr", "--iface"}) {
      EXPECT_TRUE(Contains(reason, part)) << reason;
    }
    EXPECT_EQ(node.facts()[0].node_unhealthy().unreachable_address(), "10.9.0.2");
    EXPECT_EQ(node.Started(1), nullptr);
  });
  if (!made) GTEST_SKIP() << "needs root and iproute2";
}

TEST(NodeNetwork, AnAddressWithoutARouteIsToldAtOnce) {
  const bool made = InNamespace("ip link set lo up", [] {
    Node node(1, "exit 0");
    MakeSecondOfTwo(node, "10.77.0.2");
    node.spec().mutable_membership()->set_address_check_seconds(600);
    node.Begin();
    ASSERT_TRUE(node.RunToEnd());
    ASSERT_FALSE(node.facts().empty());
    const std::string reason = node.facts()[0].node_unhealthy().reason();
    EXPECT_TRUE(Contains(reason, "10.77.0.2:29500: Network is unreachable")) << reason;
  });
  if (!made) GTEST_SKIP() << "needs root and iproute2";
}

uint32_t PortOf(const Node& node) {
  const std::string log = node.Log(0);
  return static_cast<uint32_t>(std::strtoul(log.c_str(), nullptr, 10));
}

// The port that the node has offered is the one that rank 0 gets, and a fresh one follows.
TEST(NodeNetwork, TheHeldPortIsRankZerosAndAFreshOneFollows) {
  Node node(1, "echo $MASTER_PORT");
  node.own().several_nodes = true;
  node.own().address = "127.0.0.1";
  node.Begin();
  const uint32_t first = node.generation().held_port();
  EXPECT_NE(first, 0u);
  ASSERT_TRUE(node.RunToEnd());
  EXPECT_EQ(PortOf(node), first);
  const uint32_t second = node.gone()->master_port;
  EXPECT_NE(second, first);
  EXPECT_EQ(second, node.generation().held_port());
  node.order().set_master_port(second);
  node.BeginAgain();
  ASSERT_TRUE(node.RunToEnd());
  EXPECT_EQ(PortOf(node), second);
}

TEST(NodeNetwork, ANodeWithoutRankZeroKeepsItsPort) {
  Node node(1, "true");
  node.own().several_nodes = true;
  node.own().address = "127.0.0.1";
  node.order().set_group_rank(1);
  node.order().set_group_world_size(2);
  node.order().set_master_port(29500);
  node.Begin();
  const uint32_t held = node.generation().held_port();
  ASSERT_TRUE(node.RunToEnd());
  EXPECT_EQ(node.gone()->master_port, held);
}

// The same command on each node: the workers get the environment of their own.
TEST(NodeNetwork, TheEnvironmentIsTheNodesOwn) {
  Node node(1, "echo \"[$OF_THE_JOB$OF_THE_NODE$RANK]\"");
  node.spec().mutable_environment()->insert({"OF_THE_JOB", "job"});
  node.own().environment = {{"OF_THE_NODE", "node"}, {"PATH", "/usr/bin:/bin"}};
  node.Begin();
  ASSERT_TRUE(node.RunToEnd());
  EXPECT_EQ(node.Log(0), "[node0]\n");
}

}  // namespace
}  // namespace ddprun::testing
