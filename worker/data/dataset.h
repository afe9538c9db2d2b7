// What the trainer needs of a data set: samples by number, written into memory of the caller.
// Immutable; Fill may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "common/idx.h"

namespace ddprun {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // Shape of one sample without the batch dimension, float32.
  virtual std::vector<int64_t> sample_shape() const = 0;
  // Converts the samples `indices[0 … count)` to `inputs` (count × sample) and `targets` (count
  // classes).
  virtual void Fill(const int64_t* indices, int64_t count, float* inputs,
                    int64_t* targets) const = 0;
};

// How pixels become floats: value = (pixel / 255 − mean) / deviation.
struct Normalization {
  double mean = 0;
  double deviation = 1;
};

// The training split decides the normalisation; the test split is opened with the same one.
struct OpenedDataset {
  std::shared_ptr<const Dataset> dataset;
  Normalization normalization;
};
absl::StatusOr<OpenedDataset> OpenTrainingData(const TrainConfig& config,
                                               const std::string& cache_dir);
absl::StatusOr<std::shared_ptr<const Dataset>> OpenTestData(const TrainConfig& config,
                                                            const std::string& cache_dir,
                                                            const Normalization& normalization);

}  // namespace ddprun
