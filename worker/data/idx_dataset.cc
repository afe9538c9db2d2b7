// The `idx` data kind: bytes stay as they are in the shared store; a table of 256 floats normalises
// them on the way out.
#include <array>

#include "absl/strings/str_cat.h"
#include "worker/data/dataset.h"
#include "worker/data/idx_store.h"

namespace ddprun {
namespace {

class IdxDataset : public Dataset {
 public:
  IdxDataset(std::shared_ptr<const IdxStore> store, const Normalization& normalization)
      : store_(std::move(store)) {
    for (size_t i = 0; i < table_.size(); ++i) {
      table_[i] = static_cast<float>((static_cast<double>(i) / 255.0 - normalization.mean) /
                                     normalization.deviation);
    }
  }
  int64_t size() const override { return store_->samples(); }
  std::vector<int64_t> sample_shape() const override {
    return {1, store_->rows(), store_->columns()};
  }
  void Fill(const int64_t* indices, int64_t count, float* inputs, int64_t* targets) const override {
    const int64_t pixels = store_->pixels();
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* image = store_->images() + indices[i] * pixels;
      for (int64_t p = 0; p < pixels; ++p) inputs[p] = table_[image[p]];
      inputs += pixels;
      targets[i] = store_->labels()[indices[i]];
    }
  }

 private:
  std::shared_ptr<const IdxStore> store_;
  std::array<float, 256> table_;
};

absl::StatusOr<std::shared_ptr<const IdxStore>> OpenSplit(const TrainConfig& config, Split split,
                                                          const std::string& cache_dir) {
  if (config.data_kind != "idx") {
    return absl::UnimplementedError(
        absl::StrCat("[data] kind: this worker has no \"", config.data_kind, "\""));
  }
  absl::StatusOr<IdxFiles> files = FindIdxFiles(config.data_dir, split);
  if (!files.ok()) return files.status();
  return IdxStore::Open(*files, cache_dir);
}

}  // namespace

absl::StatusOr<OpenedDataset> OpenTrainingData(const TrainConfig& config,
                                               const std::string& cache_dir) {
  auto store = OpenSplit(config, Split::kTrain, cache_dir);
  if (!store.ok()) return store.status();
  Normalization normalization;
  if (config.data_normalize == "auto") normalization = {(*store)->mean(), (*store)->deviation()};
  return OpenedDataset{std::make_shared<IdxDataset>(*store, normalization), normalization};
}

absl::StatusOr<std::shared_ptr<const Dataset>> OpenTestData(const TrainConfig& config,
                                                            const std::string& cache_dir,
                                                            const Normalization& normalization) {
  auto store = OpenSplit(config, Split::kTest, cache_dir);
  if (!store.ok()) return store.status();
  return std::make_shared<const IdxDataset>(*store, normalization);
}

}  // namespace ddprun
