// The simulator's only source of chance: the same seed gives the same numbers on every machine.
//
// SplitMix64 (Steele, Lea, Flood 2014). One per job; pure.
#pragma once

#include <cstdint>

namespace ddprun::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // 0 … limit − 1. REQUIRES: 0 < limit < 2^32.
  uint64_t Below(uint64_t limit) { return (Next() >> 32) * limit >> 32; }
  // low … high, both included; the span may be any.
  int64_t Between(int64_t low, int64_t high) {
    const double share = static_cast<double>(Next() >> 11) * 0x1p-53;
    return low + static_cast<int64_t>(share * static_cast<double>(high - low + 1));
  }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }

 private:
  uint64_t state_;
};

}  // namespace ddprun::sim
