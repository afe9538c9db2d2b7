// What the tests of data kinds share: a configuration, its data set, single samples of it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/data_files.h"
#include "worker/data/data_kinds.h"

namespace ddprun {

struct Sample {
  std::vector<float> pixels;
  std::vector<int64_t> tokens;
  std::vector<int64_t> targets;
  bool operator==(const Sample&) const = default;
};

inline Sample Take(const Dataset& data, int64_t epoch, int64_t index) {
  const SampleSpec spec = data.spec();
  Sample sample;
  sample.targets.resize(static_cast<size_t>(ElementCount(spec.target_shape)));
  const auto inputs = static_cast<size_t>(ElementCount(spec.input_shape));
  void* out = nullptr;
  if (spec.input_type == InputType::kFloat32) {
    sample.pixels.resize(inputs);
    out = sample.pixels.data();
  } else {
    sample.tokens.resize(inputs);
    out = sample.tokens.data();
  }
  EXPECT_TRUE(data.Fill(epoch, index, out, sample.targets.data()).ok());
  return sample;
}

class DataKindsTest : public ::testing::Test {
 protected:
  DatasetOr Open(DataSplit split = DataSplit::kTrain) { return OpenDataset(config_, split, ""); }
  std::string Error(DataSplit split = DataSplit::kTrain) {
    return std::string(Open(split).status().message());
  }

  DataFolder folder_;
  TrainConfig config_;
};

}  // namespace ddprun
