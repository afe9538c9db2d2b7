// How long a keeper may take for an order to stop.
#include <gtest/gtest.h>

#include <limits>

#include "launcher/agent/stop_bound.h"

namespace ddprun::agent {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
using Due = StopBound::Due;
using v1::StopWorkers;

TEST(StopBound, WithoutAnOrderNothingIsDue) {
  StopBound bound;
  EXPECT_EQ(bound.deadline_ns(), 0);
  EXPECT_EQ(bound.Pass(1000 * kSecondNs), Due::kNothing);
}

TEST(StopBound, AfterTheGraceAndThePatienceItIsWokenAndThenKilled) {
  for (const StopWorkers::Mode mode : {StopWorkers::STOP, StopWorkers::ABORT}) {
    StopBound bound;
    bound.Ordered(mode, 3, kSecondNs);
    EXPECT_EQ(bound.deadline_ns(), 17 * kSecondNs);
    EXPECT_EQ(bound.Pass(17 * kSecondNs - 1), Due::kNothing);
    // However late it is: it may have slept as long.
    EXPECT_EQ(bound.Pass(1000 * kSecondNs), Due::kWake);
    EXPECT_EQ(bound.Pass(1000 * kSecondNs), Due::kNothing);
    EXPECT_EQ(bound.Pass(1001 * kSecondNs), Due::kKill);
    EXPECT_EQ(bound.Pass(1001 * kSecondNs), Due::kNothing);
    EXPECT_EQ(bound.Pass(1006 * kSecondNs), Due::kGiveUp);
  }
}

TEST(StopBound, KillHasNoGraceAndASecondOrderLessPatience) {
  StopBound first;
  first.Ordered(StopWorkers::KILL, 600, kSecondNs);
  EXPECT_EQ(first.deadline_ns(), 14 * kSecondNs);
  StopBound second;
  second.Ordered(StopWorkers::STOP, 600, kSecondNs);
  second.Ordered(StopWorkers::KILL, 600, 2 * kSecondNs);
  EXPECT_EQ(second.deadline_ns(), 7 * kSecondNs);
}

TEST(StopBound, NoOrderMovesItLaterOrBringsAKilledKeeperTimeAgain) {
  StopBound bound;
  bound.Ordered(StopWorkers::STOP, 1, kSecondNs);
  bound.Ordered(StopWorkers::ABORT, 60, 2 * kSecondNs);
  EXPECT_EQ(bound.deadline_ns(), 15 * kSecondNs);
  EXPECT_EQ(bound.Pass(15 * kSecondNs), Due::kWake);
  bound.Ordered(StopWorkers::KILL, 0, 15 * kSecondNs);
  EXPECT_EQ(bound.Pass(16 * kSecondNs), Due::kKill);
}

TEST(StopBound, AGraceBeyondAnyTimeDoesNotOverflow) {
  StopBound bound;
  bound.Ordered(StopWorkers::STOP, std::numeric_limits<double>::infinity(), kSecondNs);
  EXPECT_GT(bound.deadline_ns(), kSecondNs);
}

}  // namespace
}  // namespace ddprun::agent
