// The `idx` data kind: bytes stay as they are in the shared store; a table of 256 floats normalises
// them on the way out.
#include <algorithm>
#include <array>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/config/data_checks.h"
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
  IdxDataset(std::shared_ptr<const IdxStore> store, std::string file,
             const Normalization& normalization, int64_t classes)
      : store_(std::move(store)), file_(std::move(file)), classes_(classes) {
    for (size_t i = 0; i < table_.size(); ++i) {
      table_[i] = static_cast<float>((static_cast<double>(i) / 255.0 - normalization.mean) /
                                     normalization.deviation);
    }
  }
  int64_t size() const override { return store_->samples(); }
  SampleSpec spec() const override {
    return {.input_shape = {1, store_->rows(), store_->columns()}, .classes = classes_};
  }
  std::string NameOf(int64_t index) const override {
    return absl::StrCat("sample ", index, " of ", file_);
  }
  // Mean and deviation are of all pixels, and known.
  uint64_t Digest() const override {
    Xxh3Stream stream;
    stream.Update(store_->labels(), static_cast<size_t>(store_->samples()));
    for (const double value : {store_->mean(), store_->deviation()}) {
      stream.UpdateU64(std::bit_cast<uint64_t>(value));
    }
    return stream.Finish().low;
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
  const std::shared_ptr<const IdxStore> store_;
  const std::string file_;
  const int64_t classes_;
  std::array<float, 256> table_;
};

struct OpenSplit {
  IdxFiles files;
  std::shared_ptr<const IdxStore> store;
};

absl::StatusOr<OpenSplit> OpenIdxSplit(const TrainConfig& config, Split split,
                                       const std::string& cache_dir) {
  absl::StatusOr<IdxFiles> files = FindIdxFiles(config.data_dir, split);
  if (!files.ok()) return files.status();
  auto store = IdxStore::Open(*files, cache_dir);
  if (!store.ok()) return store.status();
  return OpenSplit{*std::move(files), *std::move(store)};
}

int64_t ClassesOf(const IdxStore& store) {
  const uint8_t* end = store.labels() + store.samples();
  return store.samples() == 0 ? 0 : int64_t{1} + *std::max_element(store.labels(), end);
}

absl::Status CheckLabels(const TrainConfig& config, const OpenSplit& split, int64_t classes) {
  const uint8_t* begin = split.store->labels();
  const uint8_t* end = begin + split.store->samples();
  const uint8_t* bad = std::find_if(begin, end, [&](uint8_t label) { return label >= classes; });
  if (bad == end) return absl::OkStatus();
  return CheckLabel(config, split.files.labels, bad - begin, *bad, classes);
}

}  // namespace

DatasetOr OpenIdx(const TrainConfig& config, DataSplit split, const std::string& cache_dir) {
  absl::StatusOr<OpenSplit> train = OpenIdxSplit(config, Split::kTrain, cache_dir);
  if (!train.ok()) return train.status();
  const int64_t classes = ClassesFor(config, ClassesOf(*train->store));
  Normalization normalization;
  if (config.data_normalize == "auto") {
    normalization = {train->store->mean(), train->store->deviation()};
  }
  absl::StatusOr<OpenSplit> used = std::move(train);
  if (split == DataSplit::kTest) used = OpenIdxSplit(config, Split::kTest, cache_dir);
  if (!used.ok()) return used.status();
  if (absl::Status status = CheckLabels(config, *used, classes); !status.ok()) return status;
  return std::make_shared<const IdxDataset>(std::move(used->store), std::move(used->files.images),
                                            normalization, classes);
}

}  // namespace ddprun
