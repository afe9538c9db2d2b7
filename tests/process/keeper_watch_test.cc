// ddprun-keeper: standstills, places, pauses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/types.h>

#include <algorithm>
#include <csignal>

#include "common/process_tree.h"
#include "tests/process/keeper_harness.h"

namespace ddprun::keeper_test {
namespace {

using ::testing::HasSubstr;

// Letters of /proc/<pid>/stat of all descendants of the keeper.
std::vector<char> States(const KeeperProcess& keeper) {
  std::vector<char> states;
  for (pid_t pid : ListDescendants(keeper.pid())) {
    const std::string stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
    const size_t end = stat.rfind(')');
    if (end != std::string::npos && end + 2 < stat.size()) states.push_back(stat[end + 2]);
  }
  return states;
}

// A signal takes effect when the process runs next.
bool AwaitStates(const KeeperProcess& keeper, bool (*wanted)(char)) {
  const auto deadline = Clock::now() + kPatience;
  while (Clock::now() < deadline) {
    const std::vector<char> states = States(keeper);
    if (std::all_of(states.begin(), states.end(), wanted)) return true;
    poll(nullptr, 0, 5);
  }
  return false;
}

void Signal(KeeperProcess* keeper, int number) {
  keeper->Send(PacketWriter("Signal").Integer("NUMBER", number).Finish());
}

// D4: the decision is made outside the worker, which need not be able to do anything. Of two that
// say nothing, the one that computes is not told.
TEST(KeeperWatch, OneThatSleepsIsToldAndOneThatComputesIsNot) {
  KeeperProcess keeper(
      {.workers = {Shell("while :; do :; done"), Shell("exec sleep 997")}, .hang_ms = 2500});
  const Message stalled = keeper.Await("Stalled");
  EXPECT_EQ(stalled.Integer("RANK"), 1);
  EXPECT_GE(stalled.packet.Number("SECONDS").value_or(0), 2.5);
  EXPECT_LT(stalled.packet.Number("SECONDS").value_or(0), 5);
  // Said once: the answer to a later question comes without another.
  keeper.Send(PacketWriter("Examine").Finish());
  keeper.Await("Examined");
  EXPECT_EQ(keeper.Count("Stalled"), 1u);
  keeper.Stop("kill");
  keeper.AwaitGone();
}

// A loader or helper that works for a main process that waits is motion too.
TEST(KeeperWatch, TheWholeTreeOfAWorkerCounts) {
  KeeperProcess keeper(
      {.workers = {Shell("sh -c 'while :; do :; done' & wait"), Shell("sleep 997 & wait")},
       .hang_ms = 2500});
  EXPECT_EQ(keeper.Await("Stalled").Integer("RANK"), 1);
  keeper.Stop("kill");
  keeper.AwaitGone();
}

TEST(KeeperWatch, OutputIsMotion) {
  KeeperProcess keeper(
      {.workers = {Shell("while echo .; do sleep 0.5; done"), Shell("exec sleep 997")},
       .hang_ms = 1500});
  EXPECT_EQ(keeper.Await("Stalled").Integer("RANK"), 1);
  EXPECT_EQ(keeper.Count("Stalled"), 1u);
  keeper.Stop("kill");
  keeper.AwaitGone();
}

// A worker with a step page is judged by it alone, once it has completed a step: one that spins in
// vain stands still.
TEST(KeeperWatch, AStepPageThatDoesNotMoveIsAStandstill) {
  KeeperProcess keeper({.workers = {Fake({"page-then-spin"})}, .hang_ms = 1000});
  const Message stalled = keeper.Await("Stalled", 0);
  EXPECT_EQ(stalled.Integer("STEP"), 41);
  EXPECT_EQ(stalled.Text("COLLECTIVE"), "all_reduce");
  EXPECT_EQ(stalled.Integer("COLLECTIVE_STARTED"), 7);
  keeper.Stop("kill");
  keeper.AwaitGone();
}

TEST(KeeperWatch, PlacesNameEveryWorkerAlsoOneThatHasEnded) {
  KeeperProcess keeper({.workers = {Shell("exec sleep 997"), Shell("exit 0")}});
  keeper.Await("Exited", 1);
  const int64_t pid = keeper.Await("Started", 0).Integer("PID");
  keeper.Send(PacketWriter("Examine").Finish());
  keeper.Await("Examined");
  EXPECT_EQ(keeper.Await("Places", 0).Integer("PID"), pid);
  EXPECT_EQ(keeper.Await("Places", 0).Integer("SPEAKS"), 0);
  EXPECT_EQ(keeper.Await("Places", 1).Integer("PID"), 0);
  keeper.Stop("kill");
  keeper.AwaitGone();
}

// Ctrl-Z: all processes of the workers stand still, whatever they have made of themselves; fg lets
// them go on.
TEST(KeeperWatch, APauseStopsWholeTrees) {
  KeeperProcess keeper({.workers = {Shell("setsid sh -c 'echo up; while :; do sleep 0.05; done' & "
                                          "while :; do sleep 0.05; done",
                                          true)}});
  keeper.AwaitConsole(0, "up");
  Signal(&keeper, SIGSTOP);
  EXPECT_EQ(keeper.Await("Signalled").Integer("NUMBER"), SIGSTOP);
  // 'D': a shell in vfork, whose child is stopped.
  EXPECT_TRUE(AwaitStates(keeper, [](char s) { return s == 'T' || s == 'Z' || s == 'D'; }));
  Signal(&keeper, SIGCONT);
  EXPECT_TRUE(AwaitStates(keeper, [](char state) { return state != 'T'; }));
  keeper.Stop("kill");
  keeper.AwaitGone();
}

// A paused worker takes TERM and its grace as any other.
TEST(KeeperWatch, AStopContinuesWhatIsPaused) {
  KeeperProcess keeper(
      {.workers = {Shell("trap 'echo leaving; exit 5' TERM; echo up; while :; do sleep 0.05; done",
                         true)},
       .grace_ms = 60000});
  keeper.AwaitConsole(0, "up");
  Signal(&keeper, SIGSTOP);
  keeper.Await("Signalled");
  keeper.Stop("stop");
  keeper.AwaitGone();
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("CODE"), 5);
  EXPECT_THAT(keeper.Log(0), HasSubstr("leaving\n"));
}

// A launcher that was killed during a pause leaves nothing.
TEST(KeeperWatch, AKilledAgentEndsPausedWorkers) {
  KeeperProcess keeper({.workers = {Shell("sleep 997 & echo up; wait", true)}});
  keeper.AwaitConsole(0, "up");
  Signal(&keeper, SIGSTOP);
  keeper.Await("Signalled");
  keeper.CloseControl();
  EXPECT_EQ(keeper.AwaitExit(), 0);
  keeper.ExpectNothingLeft(Milliseconds(0));
}

}  // namespace
}  // namespace ddprun::keeper_test
