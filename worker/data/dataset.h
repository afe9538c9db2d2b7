// What the trainer needs of a data set: samples by number, written into memory of the caller.
//
// Immutable; Fill may be called from several threads at once. Random augmentation draws only from
// DeriveSeed(seed, kAugmentation, {epoch, index}), so a sample looks the same whatever thread or
// rank prepares it, and after a resume. Errors of Fill name the file and the sample. Fill works on
// plain memory: LibTorch in it would start threads of its own in each thread of the loader.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/train_config.h"

namespace ddprun {

enum class InputType { kFloat32, kInt64 };

// A target that counts in no loss and no accuracy, as in PyTorch's cross-entropy.
inline constexpr int64_t kIgnoredTarget = -100;

// One sample, without the batch dimension.
struct SampleSpec {
  std::vector<int64_t> input_shape;  // images: {channels, rows, columns}; tokens: {length}
  InputType input_type = InputType::kFloat32;
  std::vector<int64_t> target_shape;  // {}: one class; {length}: one a token. Always int64.
  int64_t classes = 0;                // targets are 0 … classes−1, or kIgnoredTarget
  bool ignores = false;               // some targets may be kIgnoredTarget
};

// What the look at the files of a data set may take at the start: a large one is not read wholly.
inline constexpr double kDataCheckSeconds = 1.0;

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual SampleSpec spec() const = 0;
  // Writes sample `index` as epoch `epoch` sees it: `inputs` has the product of input_shape
  // elements of input_type, `targets` the product of target_shape.
  virtual absl::Status Fill(int64_t epoch, int64_t index, void* inputs, int64_t* targets) const = 0;
  // Looks for samples that Fill would refuse, for at most about `seconds` unless all can be looked
  // at quickly: what is found before a job starts costs nothing. OK says only that nothing was
  // found. Done once for a job, by `ddp-worker --check` or by a worker without ddprun.
  virtual absl::Status Check(double /*seconds*/) const { return absl::OkStatus(); }
  // A number that tells the data from others without reading them wholly: of the names, sizes and
  // labels of the files, and what was read of them anyway. Equal on all ranks that have the same
  // files; 0 where the configuration alone makes the samples.
  virtual uint64_t Digest() const { return 0; }
  // What messages call a sample: "sample 17", with its file where there is one.
  virtual std::string NameOf(int64_t index) const { return "sample " + std::to_string(index); }
};

enum class DataSplit { kTrain, kTest };

// The data of one split as the configuration wants them. `cache_dir`: where decompressed data may
// be kept between restarts; may be empty. What the test split needs of the training split (its
// normalisation) is read again or comes from the cache. INVALID_ARGUMENT names the file and what to
// do.
absl::StatusOr<std::shared_ptr<const Dataset>> OpenDataset(const TrainConfig& config,
                                                           DataSplit split,
                                                           const std::string& cache_dir);

// Elements of one sample.
int64_t ElementCount(const std::vector<int64_t>& shape);

}  // namespace ddprun
