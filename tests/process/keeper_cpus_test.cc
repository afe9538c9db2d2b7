// ddprun-keeper binds workers to CPUs.
#include <gtest/gtest.h>
#include <sched.h>

#include "tests/process/keeper_harness.h"

namespace ddprun::keeper_test {
namespace {

constexpr const char* kShowCpus = "grep Cpus_allowed_list /proc/self/status";

WorkerOptions ShellWith(const std::string& cpus) {
  WorkerOptions worker;
  worker.arguments = {"/bin/sh", "-c", kShowCpus};
  worker.console = true;
  worker.cpus = cpus;
  return worker;
}

int LastAllowedCpu() {
  cpu_set_t set;
  int last = 0;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) last = cpu;
  }
  return last;
}

TEST(KeeperCpus, AWorkerRunsOnItsCpusOnly) {
  const std::string cpu = std::to_string(LastAllowedCpu());
  KeeperOptions options;
  options.workers = {ShellWith(cpu)};
  KeeperProcess keeper(options);
  keeper.AwaitConsole(0, "Cpus_allowed_list:\t" + cpu + "\n");
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("CODE"), 0);
  keeper.AwaitGone();
}

// CPUs that went away since they were chosen: a line in its log, and the worker runs.
TEST(KeeperCpus, ABindingThatCannotBeHadIsALineAndNotAFailure) {
  KeeperOptions options;
  options.workers = {ShellWith("8191")};
  KeeperProcess keeper(options);
  keeper.AwaitConsole(0, "ddprun-keeper: cannot bind this worker to its CPUs (8191 to 8191)");
  keeper.AwaitConsole(0, "Cpus_allowed_list:");
  EXPECT_EQ(keeper.Await("Exited", 0).Integer("CODE"), 0);
  keeper.AwaitGone();
}

}  // namespace
}  // namespace ddprun::keeper_test
