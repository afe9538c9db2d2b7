// A keeper that stands still, and a node that is told to stop its workers: it never waits for it
// without a bound, and nothing is left (S24, L7).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "common/process_tree.h"
#include "tests/process/node_harness.h"

namespace ddprun::testing {
namespace {

pid_t ParentOf(pid_t pid) {
  for (pid_t child : ListDescendants(getpid())) {
    for (pid_t grandchild : ListDescendants(child)) {
      if (grandchild == pid) return child;  // the list begins with our own children
    }
  }
  return -1;
}

// Holds a process as a debugger does, which SIGCONT does not end, until it is killed.
class Debugger {
 public:
  explicit Debugger(pid_t pid) {
    thread_ = std::thread([this, pid] {
      int status = 0;
      const bool held = ptrace(PTRACE_SEIZE, pid, 0, 0) == 0 &&
                        ptrace(PTRACE_INTERRUPT, pid, 0, 0) == 0 &&
                        waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status);
      state_ = held ? State::kHolds : State::kFailed;
      state_.notify_all();
      if (held) waitpid(pid, &status, __WALL);  // until its death, which is told to us first
    });
    state_.wait(State::kBegins);
  }
  ~Debugger() { thread_.join(); }
  bool holds() const { return state_ == State::kHolds; }

 private:
  enum class State { kBegins, kHolds, kFailed };
  std::atomic<State> state_ = State::kBegins;
  std::thread thread_;
};

// Two workers, each with a child in a session of its own; the keeper's process.
pid_t BeginTwo(Node& node) {
  EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // as the agent's process is
  node.spec().set_grace_seconds(1);
  node.Begin();
  EXPECT_TRUE(node.RunUntil([&] {
    return node.Started(0) != nullptr && node.Started(1) != nullptr &&
           Contains(node.Log(0), "up\n") && Contains(node.Log(1), "up\n");
  }));
  return node.Started(0) != nullptr ? ParentOf(node.Started(0)->pid()) : -1;
}

constexpr char kScript[] = "trap 'echo asked; exit 0' TERM; setsid sleep 975 & echo up; wait";

TEST(KeeperStandstill, OneThatASignalHasStoppedObeysAnyOrder) {
  for (const auto mode : {v1::StopWorkers::STOP, v1::StopWorkers::ABORT, v1::StopWorkers::KILL}) {
    Node node(2, kScript);
    const pid_t keeper = BeginTwo(node);
    ASSERT_GT(keeper, 0);
    ASSERT_EQ(kill(keeper, SIGSTOP), 0);
    node.Stop(mode);
    const std::optional<agent::KeeperGone> gone = node.RunToEnd();
    ASSERT_TRUE(gone);
    EXPECT_FALSE(gone->died) << gone->reason;
    EXPECT_EQ(Contains(node.Log(0), "asked"), mode != v1::StopWorkers::KILL);
    EXPECT_TRUE(ListDescendants(getpid()).empty());
  }
}

TEST(KeeperStandstill, OneThatCannotBeWokenIsKilledWithItsWorkers) {
  Node node(2, kScript);
  const pid_t keeper = BeginTwo(node);
  ASSERT_GT(keeper, 0);
  Debugger debugger(keeper);
  if (!debugger.holds()) {
    node.Stop(v1::StopWorkers::KILL);
    GTEST_SKIP() << "no process may be traced here";
  }
  node.Stop(v1::StopWorkers::STOP);
  node.Stop(v1::StopWorkers::KILL);
  const std::optional<agent::KeeperGone> gone = node.RunToEnd(60);
  if (!gone) kill(keeper, SIGKILL);
  ASSERT_TRUE(gone);
  EXPECT_TRUE(gone->died);
  EXPECT_TRUE(gone->unkillable_pids.empty());
  EXPECT_TRUE(Contains(node.ConsoleText(), "does not obey an order to stop"));
  EXPECT_TRUE(ListDescendants(getpid()).empty());
}

// It ends within a bound even where nobody runs the loop any more.
TEST(KeeperStandstill, OneThatWasStoppedDoesNotHoldUpTheEndOfTheNode) {
  Node node(2, kScript);
  const pid_t keeper = BeginTwo(node);
  ASSERT_GT(keeper, 0);
  ASSERT_EQ(kill(keeper, SIGSTOP), 0);
  node.generation().Abandon();
  EXPECT_TRUE(ListDescendants(getpid()).empty());
}

}  // namespace
}  // namespace ddprun::testing
