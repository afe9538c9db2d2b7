// Which clock an agent counts its lease on.
#include "launcher/agent/lease_clock.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

TEST(LeaseClock, BootTimeUntilACoordinatorOnTheSameMachineIsKnown) {
  LeaseClock clock;
  EXPECT_EQ(clock.id(), CLOCK_BOOTTIME);
  clock.Welcomed("here", "here");
  EXPECT_EQ(clock.id(), CLOCK_MONOTONIC);
}

TEST(LeaseClock, ACoordinatorElsewhereOrUnknownIsCountedThroughTheSleep) {
  for (const char* other : {"there", ""}) {
    LeaseClock clock;
    clock.Welcomed("here", other);
    EXPECT_EQ(clock.id(), CLOCK_BOOTTIME);
  }
  LeaseClock unknown;
  unknown.Welcomed("", "");
  EXPECT_EQ(unknown.id(), CLOCK_BOOTTIME);
}

// Going from boot time to the other would make a lease longer than it was given.
TEST(LeaseClock, BootTimeStaysOnceChosen) {
  LeaseClock clock;
  clock.Welcomed("here", "there");
  clock.Welcomed("here", "here");
  EXPECT_EQ(clock.id(), CLOCK_BOOTTIME);
  LeaseClock other;
  other.Welcomed("here", "here");
  other.Welcomed("here", "there");
  EXPECT_EQ(other.id(), CLOCK_BOOTTIME);
}

}  // namespace
}  // namespace ddprun::agent
