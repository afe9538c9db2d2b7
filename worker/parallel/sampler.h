// Which samples each rank sees, and in which order: PyTorch's DistributedSampler, position by
// position.
//
// An epoch has one order of all samples (a permutation drawn from seed + epoch, or 0 … samples−1).
// Rank r takes the places r, r + R, r + 2R, … of it. When R does not divide the number of samples,
// the order is padded from its own start, or with drop_last cut, so that every rank has equally
// many (TR1). Resume: `seen` is how many places of the epoch's order all ranks together have used
// up. The rest is dealt out among the ranks there are now, which may be another number than before
// (C9). With the same number the ranks go on with exactly what they would have seen. A value; free
// of LibTorch: the permutation equals torch.randperm(samples) on a CPU generator with that seed.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace ddprun {

struct SamplerOptions {
  int64_t samples = 0;  // in the data set, 1 … kSamplesMax
  int replicas = 1;     // data-parallel ranks
  bool shuffle = true;
  bool drop_last = false;
  uint64_t seed = 0;
};

class DistributedSampler {
 public:
  // PyTorch draws 64-bit numbers from here on (2³²/20), and a list of places would take gigabytes.
  static constexpr int64_t kSamplesMax = 214'748'364;

  // Says whether the options make sense; REQUIRED before anything else is called.
  static absl::Status Validate(const SamplerOptions& options);

  explicit DistributedSampler(const SamplerOptions& options) : options_(options) {}

  // Samples per rank in what is left of an epoch after `seen`. 0: the epoch is over.
  int64_t NumSamples(int64_t seen = 0) const;
  // The same over all ranks, padding included.
  int64_t TotalSize(int64_t seen = 0) const { return NumSamples(seen) * options_.replicas; }
  // Indices of samples for one rank (0 … replicas−1), NumSamples(seen) of them.
  std::vector<int64_t> IndicesFor(int rank, int64_t epoch, int64_t seen = 0) const;

 private:
  SamplerOptions options_;
};

// torch.randperm(count) on a CPU generator with manual_seed(seed); 0 < count ≤ kSamplesMax.
std::vector<int64_t> RandomPermutation(int64_t count, uint64_t seed);

}  // namespace ddprun
