// Numbers from one type to another: each rule of rounding, and everything that 16 bits can say.
#include "launcher/cli/ckpt_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace ddprun::cli {
namespace {

using ::testing::HasSubstr;

float Bfloat(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// The numbers of the type around `value`, and the nearer one: the rule, written another way.
template <typename Widen>
void ExpectNearest(float value, uint16_t got, uint16_t low, uint16_t high, Widen widen) {
  const double below = std::fabs(double{value} - widen(low));
  const double above = std::fabs(double{widen(high)} - value);
  const uint16_t even = (low & 1) == 0 ? low : high;
  EXPECT_EQ(got, below < above ? low : above < below ? high : even) << value;
}

TEST(CkptNumbersTest, EveryHalfSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float wide = FromHalf(static_cast<uint16_t>(bits));
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(FromHalf(ToHalf(wide))));
    } else {
      EXPECT_EQ(ToHalf(wide), bits);
    }
  }
}

TEST(CkptNumbersTest, EveryBfloat16SurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float wide = Bfloat(static_cast<uint16_t>(bits));
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(Bfloat(ToBfloat16(wide))));
    } else {
      EXPECT_EQ(ToBfloat16(wide), bits);
    }
  }
}

// Between any two neighbours: the middle, and what lies just beside it.
TEST(CkptNumbersTest, RoundsToNearestAndTiesToEven) {
  for (uint16_t low = 0; low < 0x7bff; ++low) {  // finite halves, subnormal ones included
    const auto high = static_cast<uint16_t>(low + 1);
    const float middle = (FromHalf(low) + FromHalf(high)) / 2;
    for (float value : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 1e9F)}) {
      ExpectNearest(value, ToHalf(value), low, high, FromHalf);
      EXPECT_EQ(ToHalf(-value), ToHalf(value) | 0x8000);
    }
  }
  for (uint16_t low = 0x0080; low < 0x7f7f; ++low) {  // normal ones: a middle is a float
    const auto high = static_cast<uint16_t>(low + 1);
    const float middle = std::bit_cast<float>((uint32_t{low} << 16) | 0x8000);
    for (float value : {std::nextafter(middle, 0.0F), middle,
                        std::nextafter(middle, std::numeric_limits<float>::max())}) {
      ExpectNearest(value, ToBfloat16(value), low, high, Bfloat);
    }
  }
}

std::string Bytes(std::initializer_list<double> values) {
  std::string bytes;
  for (double value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

TEST(CkptNumbersTest, ANumberThatIsTooLargeIsNamed) {
  const std::string values = Bytes({1, 65504, -70000, 1e39});
  const auto convert = [&](const char* to, size_t count) {
    std::string out;
    return ConvertNumbers("F64", to, reinterpret_cast<const uint8_t*>(values.data()), count, &out);
  };
  EXPECT_TRUE(convert("F16", 2).ok());
  EXPECT_EQ(convert("F16", 3).code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(convert("F16", 3).message(), HasSubstr("element 2 is -70000"));
  EXPECT_TRUE(convert("BF16", 3).ok());
  EXPECT_TRUE(convert("F32", 3).ok());
  for (const char* to : {"BF16", "F32"}) {
    EXPECT_THAT(convert(to, 4).message(), HasSubstr("element 3 is 1e+39")) << to;
  }
}

TEST(CkptNumbersTest, WhatIsNotFiniteStaysSo) {
  const std::string values = Bytes({HUGE_VAL, -HUGE_VAL, std::nan("")});
  for (const char* to : {"F16", "BF16", "F32"}) {
    std::string out, back;
    const auto* data = reinterpret_cast<const uint8_t*>(values.data());
    ASSERT_TRUE(ConvertNumbers("F64", to, data, 3, &out).ok());
    ASSERT_TRUE(
        ConvertNumbers(to, "F64", reinterpret_cast<const uint8_t*>(out.data()), 3, &back).ok());
    double got[3];
    memcpy(got, back.data(), sizeof got);
    EXPECT_EQ(got[0], HUGE_VAL);
    EXPECT_EQ(got[1], -HUGE_VAL);
    EXPECT_TRUE(std::isnan(got[2]));
  }
}

}  // namespace
}  // namespace ddprun::cli
