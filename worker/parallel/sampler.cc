#include "worker/parallel/sampler.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ddprun {

absl::Status DistributedSampler::Validate(const SamplerOptions& options) {
  if (options.samples < 1 || options.samples > kSamplesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a data set of ", options.samples, " samples; 1 to ", kSamplesMax, " can be shuffled"));
  }
  if (options.replicas < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.replicas, " data-parallel ranks; there must be at least one"));
  }
  return absl::OkStatus();
}

int64_t DistributedSampler::NumSamples(int64_t seen) const {
  const int64_t left = std::max<int64_t>(0, options_.samples - seen);
  const int64_t ranks = options_.replicas;
  return options_.drop_last ? left / ranks : (left + ranks - 1) / ranks;
}

std::vector<int64_t> DistributedSampler::IndicesFor(int rank, int64_t epoch, int64_t seen) const {
  std::vector<int64_t> order;
  if (options_.shuffle) {
    order = RandomPermutation(options_.samples, options_.seed + static_cast<uint64_t>(epoch));
  } else {
    order.resize(static_cast<size_t>(options_.samples));
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<int64_t> indices(static_cast<size_t>(NumSamples(seen)));
  for (size_t i = 0; i < indices.size(); ++i) {
    const int64_t place = seen + rank + static_cast<int64_t>(i) * options_.replicas;
    // Past the end the order begins again: the padding.
    indices[i] = order[static_cast<size_t>(place % options_.samples)];
  }
  return indices;
}

std::vector<int64_t> RandomPermutation(int64_t count, uint64_t seed) {
  // PyTorch's generator takes the low 32 bits of a seed, and its shuffle one 32-bit number a place.
  std::mt19937 generator(static_cast<uint32_t>(seed));
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    const size_t other = i + generator() % static_cast<uint32_t>(order.size() - i);
    std::swap(order[i], order[other]);
  }
  return order;
}

}  // namespace ddprun
