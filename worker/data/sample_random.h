// Random numbers for one sample: made from a derived seed in a few nanoseconds, since every sample
// of every epoch has a generator of its own (TR26: none is shared between threads). SplitMix64:
// Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. A value; one thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace ddprun {

class SampleRandom {
 public:
  explicit SampleRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t value = state_;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
  }
  // 0 … count−1. REQUIRES: 1 ≤ count ≤ 2³². The bias is at most count / 2³².
  int64_t Below(int64_t count) {
    return static_cast<int64_t>(((Next() >> 32) * static_cast<uint64_t>(count)) >> 32);
  }
  // Evenly in [0, 1), 53 bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  double Uniform(double low, double high) { return low + (high - low) * Uniform(); }
  // Normal with mean 0 and deviation 1 (Box and Muller's method, one of its two values).
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    return radius * std::cos(2 * std::numbers::pi * Uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace ddprun
