// CIFAR-10 in its published binary form: records of 3,073 bytes, one label (0 to 9) and 32 × 32
// pixels as three planes, red, green, blue. data_batch_1.bin … data_batch_5.bin are the training
// split, test_batch.bin the test split; files may hold fewer or more than the published 10,000
// records. Mapped, so that all ranks of a node share them; sizes and labels are checked at once.
// Immutable; any thread may read.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/data/mapped_file.h"

namespace ddprun {

inline constexpr int64_t kCifarSide = 32;
inline constexpr int64_t kCifarPixels = kCifarSide * kCifarSide;
inline constexpr int64_t kCifarRecordBytes = 1 + 3 * kCifarPixels;
inline constexpr int64_t kCifarClasses = 10;

class CifarFiles {
 public:
  // `dir` holds the files, or a folder cifar-10-batches-bin that does. NOT_FOUND or
  // INVALID_ARGUMENT name file, record and what to do.
  static absl::StatusOr<std::shared_ptr<const CifarFiles>> Open(const std::string& dir,
                                                                DataSplit split);
  int64_t size() const { return samples_; }
  // Label, then the pixels.
  const uint8_t* Record(int64_t index) const;
  // "…/data_batch_2.bin, record 17".
  std::string NameOf(int64_t index) const;

 private:
  CifarFiles() = default;
  struct Place {
    size_t file;
    int64_t record;
  };
  Place PlaceOf(int64_t index) const;

  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<int64_t> begins_;  // number of the first sample of each file
  int64_t samples_ = 0;
};

// Of each channel, scaled to 0 … 1: mean and population deviation, from exact integer sums.
struct ChannelStatistics {
  std::array<double, 3> mean;
  std::array<double, 3> deviation;
};
ChannelStatistics ComputeChannelStatistics(const CifarFiles& files);

}  // namespace ddprun
