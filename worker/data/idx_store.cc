#include "worker/data/idx_store.h"

#include <sys/mman.h>

#include <cmath>

#include "worker/data/idx_cache.h"

namespace ddprun {
namespace {

// n² · variance does not fit in 64 bits.
__extension__ using Uint128 = unsigned __int128;

}  // namespace

absl::StatusOr<std::shared_ptr<const IdxStore>> IdxStore::Open(const IdxFiles& files,
                                                               const std::string& cache_dir) {
  if (!cache_dir.empty()) {
    auto store = IdxCache::OpenOrMake(files, cache_dir);
    // The files themselves are wrong: no use in reading them again. Anything else is the cache's
    // trouble.
    if (store.ok() || store.status().code() == absl::StatusCode::kInvalidArgument) return store;
  }
  return IdxCache::ReadPrivate(files);
}

IdxStore::~IdxStore() {
  if (map_ != nullptr) munmap(map_, map_bytes_);
}

PixelStatistics ComputePixelStatistics(const uint8_t* pixels, size_t count) {
  constexpr size_t kBlock = 1 << 15;  // 32-bit sums of squares cannot overflow within a block
  uint64_t sum = 0;
  uint64_t squares = 0;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    uint32_t block_sum = 0;
    uint32_t block_squares = 0;
    for (size_t i = begin; i < end; ++i) {
      const uint32_t pixel = pixels[i];
      block_sum += pixel;
      block_squares += pixel * pixel;
    }
    sum += block_sum;
    squares += block_squares;
  }
  if (count == 0) return {0, 1};
  const auto n = static_cast<Uint128>(count);
  const Uint128 spread = n * squares - static_cast<Uint128>(sum) * sum;  // n² · variance
  const double mean = static_cast<double>(sum) / (static_cast<double>(count) * 255.0);
  const double deviation =
      std::sqrt(static_cast<double>(spread)) / (static_cast<double>(count) * 255.0);
  // All pixels equal: nothing to scale.
  return {mean, deviation > 0 ? deviation : 1.0};
}

}  // namespace ddprun
