// The health check of a node before a generation, and orders that come while it runs.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <sstream>

#include "tests/process/node_harness.h"

namespace ddprun::testing {
namespace {

const v1::NodeUnhealthy* Unhealthy(const Node& node) {
  for (const v1::AgentMessage& fact : node.facts()) {
    if (fact.has_node_unhealthy()) return &fact.node_unhealthy();
  }
  return nullptr;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

pid_t ReadPid(const std::string& path) {
  std::ifstream in(path);
  pid_t pid = 0;
  in >> pid;
  return pid;
}

TEST(HealthCheckTest, WorkersStartOnlyAfterItHasPassed) {
  Node node(2, "cat $DDPRUN_RUN_DIR/checked");
  node.spec().mutable_supervision()->set_health_check(
      "echo looking; sleep 0.3; echo $DDPRUN_NODE $DDPRUN_GENERATION > $DDPRUN_RUN_DIR/checked");
  node.Begin();
  EXPECT_TRUE(node.facts().empty()) << "it does not wait in Begin";
  ASSERT_TRUE(node.RunToEnd());
  EXPECT_EQ(Unhealthy(node), nullptr);
  ASSERT_TRUE(node.Exit(0) && node.Exit(1));
  EXPECT_EQ(node.Exit(0)->exit_code(), 0);
  EXPECT_EQ(node.Log(1), "n1 1\n");
  EXPECT_EQ(ReadFile(node.folder() + "/run/logs/g1/health-n1.log"), "looking\n");
}

TEST(HealthCheckTest, OneThatFailsIsToldWithItsLastLines) {
  Node node(1, "touch $DDPRUN_RUN_DIR/started");
  node.spec().mutable_supervision()->set_health_check("echo disk is full; echo bye >&2; exit 4");
  node.Begin();
  ASSERT_TRUE(node.RunToEnd());
  ASSERT_NE(Unhealthy(node), nullptr);
  EXPECT_TRUE(
      Contains(Unhealthy(node)->reason(), "exited with code 4; it said: disk is full | bye"))
      << Unhealthy(node)->reason();
  EXPECT_EQ(node.Started(0), nullptr);
  EXPECT_EQ(ReadFile(node.folder() + "/run/started"), "");
  EXPECT_FALSE(node.gone()->died);
}

// Nothing of it is left over: neither of one that is late, nor of one that leaves children.
TEST(HealthCheckTest, OneThatIsLateIsKilledWithAllItsChildren) {
  Node node(1, "true");
  node.spec().mutable_supervision()->set_health_check(
      "trap '' TERM; setsid sleep 985 & echo $! > $DDPRUN_RUN_DIR/pid; echo waiting; sleep 984");
  node.spec().mutable_supervision()->set_health_check_timeout_seconds(0.5);
  node.Begin();
  ASSERT_TRUE(node.RunToEnd(10));
  ASSERT_NE(Unhealthy(node), nullptr);
  EXPECT_TRUE(Contains(Unhealthy(node)->reason(), "was not over after 0.5 s; it said: waiting"))
      << Unhealthy(node)->reason();
  const pid_t child = ReadPid(node.folder() + "/run/pid");
  ASSERT_GT(child, 0);
  EXPECT_NE(kill(child, 0), 0);
}

TEST(HealthCheckTest, OneThatPassesLeavesNothingEither) {
  Node node(1, "true");
  node.spec().mutable_supervision()->set_health_check(
      "setsid sleep 983 & echo $! > $DDPRUN_RUN_DIR/pid");
  node.Begin();
  ASSERT_TRUE(node.RunToEnd());
  EXPECT_EQ(Unhealthy(node), nullptr);
  const pid_t child = ReadPid(node.folder() + "/run/pid");
  ASSERT_GT(child, 0);
  EXPECT_NE(kill(child, 0), 0);
}

// S24: an order to stop that comes meanwhile.
TEST(HealthCheckTest, AStopCancelsItAndNothingStarts) {
  Node node(1, "true");
  node.spec().mutable_supervision()->set_health_check(
      "echo $$ > $DDPRUN_RUN_DIR/pid; exec sleep 982");
  node.Begin();
  const std::string pid_file = node.folder() + "/run/pid";
  ASSERT_TRUE(node.RunUntil([&] { return ReadPid(pid_file) > 0; }));
  node.Stop(v1::StopWorkers::STOP, 30);
  ASSERT_TRUE(node.RunToEnd(5)) << "the grace is for workers";
  EXPECT_EQ(Unhealthy(node), nullptr) << "a check that we end ourselves says nothing";
  EXPECT_EQ(node.Started(0), nullptr);
  EXPECT_NE(kill(ReadPid(pid_file), 0), 0);
}

// L8: the launcher's death takes it along.
TEST(HealthCheckTest, AbandonEndsIt) {
  Node node(1, "true");
  node.spec().mutable_supervision()->set_health_check(
      "echo $$ > $DDPRUN_RUN_DIR/pid; exec sleep 981");
  node.Begin();
  const std::string pid_file = node.folder() + "/run/pid";
  ASSERT_TRUE(node.RunUntil([&] { return ReadPid(pid_file) > 0; }));
  node.generation().Abandon();
  EXPECT_NE(kill(ReadPid(pid_file), 0), 0);
}

}  // namespace
}  // namespace ddprun::testing
