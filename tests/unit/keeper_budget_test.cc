// How much a worker may say (packets, bytes), by a clock that the test turns.
#include <gtest/gtest.h>

#include "launcher/keeper/packet_budget.h"

namespace ddprun::keeper {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1000 * kSecond;

int TakeAll(PacketBudget* budget, size_t bytes, int64_t now_ns, int most) {
  int taken = 0;
  while (taken < most && budget->Take(bytes, now_ns)) ++taken;
  return taken;
}

TEST(PacketBudgetTest, ABurstIsTakenAndThenTheRate) {
  PacketBudget budget;
  EXPECT_EQ(TakeAll(&budget, 10, kNow, 1 << 20), PacketBudget::kPacketsBurst);
  EXPECT_EQ(TakeAll(&budget, 10, kNow, 1 << 20), 0);
  EXPECT_EQ(TakeAll(&budget, 10, kNow + kSecond, 1 << 20), PacketBudget::kPacketsPerSecond);
  EXPECT_EQ(TakeAll(&budget, 10, kNow + 3600 * kSecond, 1 << 20), PacketBudget::kPacketsBurst);
}

TEST(PacketBudgetTest, BytesCountTooAndNothingIsLostInRounding) {
  PacketBudget budget;
  EXPECT_EQ(TakeAll(&budget, 65536, kNow, 1 << 20), PacketBudget::kBytesBurst / 65536);
  int taken = 0;
  for (int64_t at = kNow; at <= kNow + kSecond; at += 1'234'567) {
    taken += TakeAll(&budget, 4096, at, 1 << 20);
  }
  EXPECT_NEAR(taken, PacketBudget::kBytesPerSecond / 4096, 2);
}

TEST(PacketBudgetTest, AClockThatGoesBackGivesNothing) {
  PacketBudget budget;
  TakeAll(&budget, 1, kNow, 1 << 20);
  EXPECT_FALSE(budget.Take(1, kNow - kSecond));
  EXPECT_TRUE(budget.Take(1, kNow + kSecond));
}

}  // namespace
}  // namespace ddprun::keeper
