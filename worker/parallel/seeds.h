// All random numbers of a run come from train.seed. Model and sampler use it as it is (so that the
// same seed in PyTorch gives the same initial weights and order); every other use derives its own.
// Pure.
#pragma once

#include <array>
#include <cstdint>

#include "common/checksum.h"

namespace ddprun {

enum class SeedPurpose : uint64_t {
  kRank =
      1,  // LibTorch's generator of a rank (dropout and the like): parts are rank and world size
  kRankResumed = 2,   // the same after a change of the world size: rank, world size, samples seen
  kAugmentation = 3,  // of one sample: epoch, sample (TR26: not of the thread that prepares it)
  kSynthetic = 4,     // of synthetic data: stream, sample
};

// Distinct parts give unrelated seeds; the same parts always the same one.
inline uint64_t DeriveSeed(int64_t seed, SeedPurpose purpose, std::array<int64_t, 3> parts) {
  const std::array<int64_t, 5> words = {seed, static_cast<int64_t>(purpose), parts[0], parts[1],
                                        parts[2]};
  return Xxh3(words.data(), sizeof(words)).low;
}

}  // namespace ddprun
