// The `idx` data kind: bytes stay as they are in the shared store; a table of 256 floats normalises
// them on the way out.
#include <algorithm>
#include <array>

#include "worker/data/data_kinds.h"
#include "worker/data/idx_store.h"

namespace ddprun {
namespace {

// How pixels become floats: value = (pixel / 255 − mean) / deviation.
struct Normalization {
  double mean = 0;
  double deviation = 1;
};

class IdxDataset : public Dataset {
 public:
  IdxDataset(std::shared_ptr<const IdxStore> store, const Normalization& normalization)
      : store_(std::move(store)) {
    for (size_t i = 0; i < table_.size(); ++i) {
      table_[i] = static_cast<float>((static_cast<double>(i) / 255.0 - normalization.mean) /
                                     normalization.deviation);
    }
    if (store_->samples() > 0) {
      classes_ = 1 + *std::max_element(store_->labels(), store_->labels() + store_->samples());
    }
  }
  int64_t size() const override { return store_->samples(); }
  SampleSpec spec() const override {
    return {.input_shape = {1, store_->rows(), store_->columns()}, .classes = classes_};
  }
  absl::Status Fill(int64_t /*epoch*/, int64_t index, void* inputs,
                    int64_t* targets) const override {
    const int64_t pixels = store_->pixels();
    const uint8_t* image = store_->images() + index * pixels;
    auto* values = static_cast<float*>(inputs);
    for (int64_t p = 0; p < pixels; ++p) values[p] = table_[image[p]];
    *targets = store_->labels()[index];
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<const IdxStore> store_;
  std::array<float, 256> table_;
  int64_t classes_ = 0;
};

absl::StatusOr<std::shared_ptr<const IdxStore>> OpenSplit(const TrainConfig& config, Split split,
                                                          const std::string& cache_dir) {
  absl::StatusOr<IdxFiles> files = FindIdxFiles(config.data_dir, split);
  if (!files.ok()) return files.status();
  return IdxStore::Open(*files, cache_dir);
}

}  // namespace

DatasetOr OpenIdx(const TrainConfig& config, DataSplit split, const std::string& cache_dir) {
  auto train = OpenSplit(config, Split::kTrain, cache_dir);
  if (!train.ok()) return train.status();
  Normalization normalization;
  if (config.data_normalize == "auto") normalization = {(*train)->mean(), (*train)->deviation()};
  if (split == DataSplit::kTrain) return std::make_shared<const IdxDataset>(*train, normalization);
  auto test = OpenSplit(config, Split::kTest, cache_dir);
  if (!test.ok()) return test.status();
  return std::make_shared<const IdxDataset>(*test, normalization);
}

}  // namespace ddprun
