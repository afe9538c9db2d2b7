// The rows of the table of train.cfg keys, by subject. See key_table.h.
#pragma once

#include <vector>

#include "common/config/key_table.h"

namespace ddprun {

// Limits that only keep arithmetic safe; nobody trains with more.
inline constexpr double kBatchMax = 1 << 20;
inline constexpr double kStepsMax = 1e12;
inline constexpr double kLoaderThreadsMax = 256;
inline constexpr double kSeedMax = 4294967295.0;  // the sampler's generator is seeded with 32 bits
inline constexpr double kImageSizeMax = 16384;
inline constexpr double kVocabularyMax = 4294967295.0;  // token files hold at most 32 bits a token
inline constexpr double kModelSizeMax = 1 << 20;

std::vector<KeySpec> ModelKeys();
// [data]: where samples come from, and how they become batches.
std::vector<KeySpec> DataKeys();
// [data]: what a sample is.
std::vector<KeySpec> SampleKeys();
std::vector<KeySpec> TrainKeys();
std::vector<KeySpec> PrecisionKeys();
std::vector<KeySpec> ParallelKeys();
// [performance] and [checks].
std::vector<KeySpec> PerformanceKeys();
// [checkpoint] and [log].
std::vector<KeySpec> CheckpointKeys();

}  // namespace ddprun
