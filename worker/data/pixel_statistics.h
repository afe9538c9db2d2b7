// Mean and deviation of pixels, scaled to 0 … 1, from sums that are exact, so that they depend on
// nothing but the pixels. Values; pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun {

struct PixelStatistics {
  double mean;
  double
      deviation;  // of the population; 1 where all pixels are equal and there is nothing to scale
};

class PixelSums {
 public:
  // At most 2³⁴ pixels in all.
  void Add(const uint8_t* pixels, size_t count);
  PixelStatistics Statistics() const;

 private:
  uint64_t count_ = 0;
  uint64_t sum_ = 0;
  uint64_t squares_ = 0;
};

PixelStatistics ComputePixelStatistics(const uint8_t* pixels, size_t count);

}  // namespace ddprun
