// A data set whose samples say their number, and what a loader gives of it.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "worker/data/loader.h"

namespace ddprun {

// Samples of `width` floats that all hold the number of the sample.
class NumberedDataset : public Dataset {
 public:
  explicit NumberedDataset(int64_t size, int64_t width = 1) : size_(size), width_(width) {}
  int64_t size() const override { return size_; }
  SampleSpec spec() const override { return {.input_shape = {width_}, .classes = 10}; }
  absl::Status Fill(int64_t /*epoch*/, int64_t index, void* inputs,
                    int64_t* targets) const override {
    std::fill_n(static_cast<float*>(inputs), width_, static_cast<float>(index));
    *targets = index % 10;
    return absl::OkStatus();
  }

 private:
  const int64_t size_;
  const int64_t width_;
};

inline std::vector<int64_t> Numbers(int64_t begin, int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

inline std::vector<int64_t> FirstColumn(const Batch& batch) {
  const at::Tensor column = batch.inputs.select(1, 0).to(at::kLong).contiguous();
  return {column.data_ptr<int64_t>(), column.data_ptr<int64_t>() + column.numel()};
}

// All samples that a loader gives until its list ends.
template <typename AnyLoader>
std::vector<int64_t> Drain(AnyLoader* loader) {
  std::vector<int64_t> seen;
  for (Batch batch = *loader->Next(); batch.inputs.defined(); batch = *loader->Next()) {
    const std::vector<int64_t> numbers = FirstColumn(batch);
    seen.insert(seen.end(), numbers.begin(), numbers.end());
    for (int64_t i = 0; i < batch.targets.size(0); ++i)
      EXPECT_EQ(batch.targets[i].item<int64_t>(), numbers[static_cast<size_t>(i)] % 10);
  }
  return seen;
}

}  // namespace ddprun
