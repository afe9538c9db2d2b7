// The same seed plays the same way, byte for byte: again, beside others, and on any number of
// threads.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "launcher/sim/scenario.h"
#include "launcher/sim/simulate.h"

namespace ddprun::sim {
namespace {

// Standard output of the built ddprun-sim, without its last line (which tells the time it took).
std::string OutputOf(const std::string& arguments) {
  const std::string command = std::string(std::getenv("DDPRUN_BIN")) + "/ddprun-sim " + arguments;
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[65536];
  for (size_t got = 0; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    output.append(buffer, got);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output.substr(0, output.rfind('\n', output.size() - 2) + 1);
}

TEST(Replay, OfASeedGivesTheSameBytes) {
  for (uint64_t seed : {1, 2, 3, 17, 4711}) {
    const SeedReport first = RunSeed(seed, true, true);
    const SeedReport second = RunSeed(seed, true, true);
    EXPECT_EQ(first.violation, "");
    EXPECT_GT(first.trace.size(), 10000u);
    EXPECT_EQ(first.trace, second.trace);
  }
}

TEST(Replay, DoesNotDependOnTheTrace) {
  const SeedReport traced = RunSeed(99, true, true);
  const SeedReport silent = RunSeed(99, true, false);
  EXPECT_EQ(silent.trace, "");
  EXPECT_EQ(traced.events, silent.events);
  EXPECT_EQ(traced.virtual_ns, silent.virtual_ns);
}

TEST(Replay, OnManyThreadsAtOnceGivesTheSameBytes) {
  constexpr uint64_t kSeeds = 8;
  std::vector<std::string> alone, together(kSeeds);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) alone.push_back(RunSeed(seed, true, true).trace);
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    threads.emplace_back([&, seed] { together[seed] = RunSeed(seed, true, true).trace; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(alone, together);
}

TEST(Replay, OfTheProgramDoesNotDependOnJobs) {
  const std::string one = OutputOf("--seeds 20..35 --trace --jobs 1");
  const std::string four = OutputOf("--seeds 20..35 --trace --jobs 4");
  EXPECT_GT(one.size(), 100000u);
  EXPECT_EQ(one, four);
}

TEST(Seed, HasEnoughNodesEventsAndFaults) {
  int single = 0;
  for (uint64_t seed = 500; seed < 600; ++seed) {
    const Scenario scenario = MakeScenario(seed, 0, {});
    if (scenario.single_node) ++single;
    EXPECT_GE(scenario.nodes.size(), scenario.single_node ? 1u : 8u);
    EXPECT_LE(scenario.nodes.size(), 16u);
    EXPECT_EQ(scenario.spec.lease_seconds(), scenario.single_node ? 0 : 3);
    const SeedReport report = RunSeed(seed, true, false);
    EXPECT_GE(report.events, kEventsOfSeedMin) << seed;
    EXPECT_GE(report.faults, kFaultsOfSeedMin) << seed;
  }
  EXPECT_GT(single, 0);
  EXPECT_LT(single, 50);
}

TEST(Seed, WithoutFaultsHasOneGenerationAJob) {
  uint64_t generations = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const SeedReport report = RunSeed(seed, false, false);
    EXPECT_EQ(report.violation, "") << seed;
    EXPECT_LE(report.generations, report.jobs) << seed;  // none where nodes come too late
    generations += report.generations;
  }
  EXPECT_GE(generations, 15u);
}

}  // namespace
}  // namespace ddprun::sim
