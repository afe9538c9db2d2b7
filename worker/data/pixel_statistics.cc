#include "worker/data/pixel_statistics.h"

#include <algorithm>
#include <cmath>

namespace ddprun {
namespace {

// n² · variance does not fit in 64 bits.
__extension__ using Uint128 = unsigned __int128;

}  // namespace

void PixelSums::Add(const uint8_t* pixels, size_t count) {
  constexpr size_t kBlock = 1 << 15;  // 32-bit sums of squares cannot overflow within a block
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    uint32_t block_sum = 0;
    uint32_t block_squares = 0;
    for (size_t i = begin; i < end; ++i) {
      const uint32_t pixel = pixels[i];
      block_sum += pixel;
      block_squares += pixel * pixel;
    }
    sum_ += block_sum;
    squares_ += block_squares;
  }
  count_ += count;
}

PixelStatistics PixelSums::Statistics() const {
  if (count_ == 0) return {0, 1};
  const auto n = static_cast<Uint128>(count_);
  const Uint128 spread = n * squares_ - static_cast<Uint128>(sum_) * sum_;  // n² · variance
  const double scale = static_cast<double>(count_) * 255.0;
  const double deviation = std::sqrt(static_cast<double>(spread)) / scale;
  return {static_cast<double>(sum_) / scale, deviation > 0 ? deviation : 1.0};
}

PixelStatistics ComputePixelStatistics(const uint8_t* pixels, size_t count) {
  PixelSums sums;
  sums.Add(pixels, count);
  return sums.Statistics();
}

}  // namespace ddprun
