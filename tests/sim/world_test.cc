// The simulator notices when the control plane's guards are taken away: each invariant that the
// world observes can fail.
#include "launcher/sim/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ddprun::sim {
namespace {

// The first violation in these seeds when the world is broken in this way; "" when none is seen.
std::string FirstViolation(Sabotage sabotage, uint64_t seeds) {
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    Scenario scenario = MakeScenario(seed, 0, {});
    // On a single node there are no heartbeats: after a hang nothing is left to happen, which is
    // I4.
    if (sabotage == Sabotage::kKeepersIgnoreStalls && scenario.single_node) continue;
    scenario.sabotage = sabotage;
    Disk disk(0);
    Trace trace(false);
    const JobReport report = World(scenario, {}, disk, trace).Run();
    if (!report.violation.empty()) return report.violation;
  }
  return "";
}

TEST(World, IsQuietWhenNothingIsSabotaged) {
  EXPECT_EQ(FirstViolation(Sabotage::kNone, 30), "");
}

// L37.
TEST(World, SeesTwoGenerationsWhenKeepersIgnoreTheirLeases) {
  EXPECT_THAT(FirstViolation(Sabotage::kKeepersIgnoreLeases, 200), testing::HasSubstr("I1: "));
}

TEST(World, SeesTwoGenerationsWhenANewCoordinatorDoesNotWaitForOldLeases) {
  EXPECT_THAT(FirstViolation(Sabotage::kPastSaysNothingRuns, 20000), testing::HasSubstr("I1: "));
}

TEST(World, SeesAHangThatNobodyEnds) {
  EXPECT_THAT(FirstViolation(Sabotage::kKeepersIgnoreStalls, 2000), testing::HasSubstr("I16: "));
}

TEST(World, SeesAStallWhenTheDiskNeverAnswers) {
  EXPECT_THAT(FirstViolation(Sabotage::kDiskNeverCommits, 20), testing::HasSubstr("I4: "));
}

TEST(World, SeesASuccessThatIsNone) {
  EXPECT_THAT(FirstViolation(Sabotage::kKeepersHideFailures, 50), testing::HasSubstr("I13: "));
}

TEST(World, SeesACheckpointThatIsNeverAgreed) {
  EXPECT_THAT(FirstViolation(Sabotage::kWorkersIgnoreEdges, 2000), testing::HasSubstr("I12: "));
}

TEST(World, SeesAResumeStepThatWasNeverCommitted) {
  EXPECT_THAT(FirstViolation(Sabotage::kWrongResumeStep, 5), testing::HasSubstr("I2: "));
}

}  // namespace
}  // namespace ddprun::sim
