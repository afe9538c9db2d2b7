// Signals to the binary, and coordinator and agents apart over TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "tests/unit/cli_folder.h"
#include "tests/unit/cli_process.h"

namespace ddprun::cli {
namespace {

// Several nodes need one; the programs that tests start inherit it.
[[maybe_unused]] const int kSecretIsSet = setenv("DDPRUN_SECRET", "of the tests alone", 1);

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Shell(const std::string& script,
                               const std::vector<std::string>& options = {}) {
  std::vector<std::string> command = {DdprunPath(), "--nproc", "2", "--run-dir", "r"};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"--", "sh", "-c", script});
  return command;
}

// A loop of a shell, which runs its traps between short sleeps.
constexpr char kLoop[] = "echo up; while :; do sleep 0.05; done";

// L15, L16: SIGINT and SIGTERM reach the workers, which may leave in their own way.
TEST(SignalsTest, AStopReachesTheWorkersAndIsTheExitCode) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    Folder folder;
    Running ddprun(Shell(std::string("trap 'echo leaving; exit 0' TERM; ") + kLoop), folder.path());
    ddprun.WaitFor("] up", 2);
    ddprun.Signal(number);
    ddprun.WaitFor("] leaving", 2);
    EXPECT_EQ(ddprun.WaitForEnd(), 128 + number);
    EXPECT_THAT(folder.Read("r/result.json"), HasSubstr("\"stopped\""));
  }
}

// S24: a second Ctrl-C does not wait for the grace.
TEST(SignalsTest, ASecondInterruptKillsAtOnce) {
  Folder folder;
  Running ddprun(Shell(std::string("trap 'echo no' TERM; ") + kLoop, {"--grace", "3600"}),
                 folder.path());
  ddprun.WaitFor("] up", 2);
  ddprun.Signal(SIGINT);
  ddprun.WaitFor("] no", 2);
  // From another sender: one sender's signal told twice within moments is one wish.
  ASSERT_EQ(std::system(("kill -INT " + std::to_string(ddprun.pid())).c_str()), 0);
  std::string all;
  EXPECT_EQ(ddprun.WaitForEnd(&all), 130);
  EXPECT_THAT(all, HasSubstr("killing the workers"));
}

// S8, L11: nohup.
TEST(SignalsTest, AnIgnoredHangupStaysIgnoredHereAndInTheWorkers) {
  Folder folder;
  Running ddprun(Shell("kill -HUP $$; echo survived; exec sleep 3600"), folder.path(), SIGHUP);
  ddprun.WaitFor("] survived", 2);
  ddprun.Signal(SIGHUP);
  ddprun.Signal(SIGTERM);
  // Had the hangup counted, SIGTERM would have been the second signal.
  std::string all;
  EXPECT_EQ(ddprun.WaitForEnd(&all), 143);
  EXPECT_THAT(all, Not(HasSubstr("again")));
}

// S9: passed on to every worker of a plain program; the job continues.
TEST(SignalsTest, Usr2IsPassedOnAndTheJobContinues) {
  Folder folder;
  Running ddprun(Shell(std::string("trap 'echo usr2; exit 0' USR2; ") + kLoop), folder.path());
  ddprun.WaitFor("] up", 2);
  ddprun.Signal(SIGUSR2);
  ddprun.WaitFor("] usr2", 2);
  EXPECT_EQ(ddprun.WaitForEnd(), 0);
}

// The address in "listening on HOST:PORT".
std::string AddressOf(Running& coordinator) {
  const std::string before = "listening on ";
  std::string text = coordinator.WaitFor(before);
  const size_t start = text.find(before) + before.size();
  const auto lines = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(start), '\n');
  text = coordinator.WaitFor("\n", static_cast<int>(lines) + 1);
  return text.substr(start, text.find('\n', start) - start);
}

// S22, L28, L47: two agents over TCP with uneven numbers of workers; the code of the worker at
// fault arrives.
TEST(ApartTest, CoordinatorAndAgentsRunAJobOverTcp) {
  // Rank 4 ends when all have spoken, since its failure ends the others.
  const std::string script =
      "echo rank $RANK of $WORLD_SIZE local $LOCAL_WORLD_SIZE; : > up.$RANK; [ $RANK = 4 ] || exit "
      "0; "
      "until [ -e up.0 -a -e up.1 -a -e up.2 -a -e up.3 ]; do sleep 0.01; done; exit ";
  for (const int code : {0, 7}) {
    Folder folder;
    Running coordinator(
        {DdprunPath(), "coordinator", "--listen", "127.0.0.1:0", "--nnodes", "2", "--run-dir", "r",
         "--max-restarts", "0", "--", "sh", "-c", script + std::to_string(code)},
        folder.path());
    const std::string address = AddressOf(coordinator);
    Running first({DdprunPath(), "agent", "--coordinator", address, "--nproc", "2", "--node", "n1"},
                  folder.path());
    coordinator.WaitFor("node n1 at 127.0.0.1 has joined (1 of 2)");
    Running second(
        {DdprunPath(), "agent", "--coordinator", address, "--nproc", "3", "--node", "n2"},
        folder.path());
    std::string output;
    EXPECT_EQ(coordinator.WaitForEnd(), code);
    EXPECT_EQ(first.WaitForEnd(&output), code);
    EXPECT_THAT(output, AllOf(HasSubstr("rank 0 of 5 local 2"), HasSubstr("rank 1 of 5 local 2")));
    EXPECT_EQ(second.WaitForEnd(&output), code);
    EXPECT_THAT(output, HasSubstr("rank 4 of 5 local 3"));
  }
}

// L35: leaving is the node's own affair, and its exit code says why.
TEST(ApartTest, AnAgentLeavesOnSigterm) {
  Folder folder;
  Running coordinator({DdprunPath(), "coordinator", "--listen", "127.0.0.1:0", "--nnodes", "2",
                       "--run-dir", "r", "--", "true"},
                      folder.path());
  const std::string address = AddressOf(coordinator);
  Running agent({DdprunPath(), "agent", "--coordinator", address, "--node", "n1"}, folder.path());
  coordinator.WaitFor("node n1 at 127.0.0.1 has joined (1 of 2)");
  agent.Signal(SIGTERM);
  EXPECT_EQ(agent.WaitForEnd(), 143);
  coordinator.WaitFor("node n1 has left");
  coordinator.Signal(SIGINT);
  EXPECT_EQ(coordinator.WaitForEnd(), 130);
}

}  // namespace
}  // namespace ddprun::cli
