// Reductions on host memory: rounding of 16-bit floats, NaN, division.
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "worker/comm/reduce_functions.h"

namespace ddprun {
namespace {

uint16_t AddBFloat16(uint16_t a, uint16_t b) {
  FindReduceFunction(DataType::kBFloat16, ReduceOp::kSum)(&a, &a, &b, 1);
  return a;
}

TEST(ReduceFunctions, BFloat16SumsRoundToNearestEven) {
  EXPECT_EQ(AddBFloat16(0x3f80, 0x3f80), 0x4000);  // 1 + 1
  EXPECT_EQ(AddBFloat16(0x3f80, 0x3b80), 0x3f80);  // 1 + 2⁻⁸: half way, to the even neighbour below
  EXPECT_EQ(AddBFloat16(0x3f81, 0x3b80), 0x3f82);  // 1 + 2⁻⁷ + 2⁻⁸: half way, to the even one above
  EXPECT_EQ(AddBFloat16(0x7f7f, 0x7f7f), 0x7f80);  // overflow gives infinity
  EXPECT_EQ(AddBFloat16(0x7f80, 0xff80), 0x7fc0);  // ∞ − ∞ gives NaN
}

TEST(ReduceFunctions, MinAndMaxKeepANaNFromEitherSide) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    float left = nan;
    float right = 1;
    FindReduceFunction(DataType::kFloat32, op)(&left, &left, &right, 1);
    EXPECT_TRUE(std::isnan(left));
    left = 1;
    right = nan;
    FindReduceFunction(DataType::kFloat32, op)(&left, &left, &right, 1);
    EXPECT_TRUE(std::isnan(left));
  }
}

TEST(ReduceFunctions, TheOutputMayBeEitherInput) {
  int32_t a[3] = {1, 2, 3};
  int32_t b[3] = {10, 20, 30};
  FindReduceFunction(DataType::kInt32, ReduceOp::kSum)(b, a, b, 3);
  EXPECT_EQ(b[0], 11);
  EXPECT_EQ(b[2], 33);
}

TEST(ReduceFunctions, DivisionIsTheCorrectlyRoundedQuotient) {
  float third = 1;
  DivideBy(&third, 1, DataType::kFloat32, 3);
  EXPECT_EQ(third, 1.0F / 3.0F);
  int64_t whole = -7;
  DivideBy(&whole, 1, DataType::kInt64, 2);
  EXPECT_EQ(whole, -3);
  uint8_t byte = 200;
  DivideBy(&byte, 1, DataType::kUInt8, 300);
  EXPECT_EQ(byte, 0);
}

}  // namespace
}  // namespace ddprun
