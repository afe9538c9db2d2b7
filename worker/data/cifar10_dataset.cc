// The `cifar10` data kind: bytes stay in the mapped files; a table of 256 floats a channel
// normalises them on the way out. `augment`: torchvision's RandomCrop(32, padding=4) and
// RandomHorizontalFlip; the border is black before it is normalised, as there.
#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/config/data_checks.h"
#include "worker/data/cifar_file.h"
#include "worker/data/data_kinds.h"
#include "worker/data/image_resample.h"
#include "worker/data/sample_random.h"
#include "worker/parallel/seeds.h"

namespace ddprun {
namespace {

constexpr int64_t kPadding = 4;

// Where the 32 × 32 window lies over the picture, and whether it is mirrored.
struct Window {
  int64_t row = 0;  // −4 … 4
  int64_t column = 0;
  bool flip = false;
};

Window DrawWindow(uint64_t seed) {
  SampleRandom random(seed);
  Window window;
  window.row = random.Below(2 * kPadding + 1) - kPadding;
  window.column = random.Below(2 * kPadding + 1) - kPadding;
  window.flip = random.Below(2) == 1;
  return window;
}

class Cifar10Dataset : public Dataset {
 public:
  Cifar10Dataset(std::shared_ptr<const CifarFiles> files, const ChannelStatistics& statistics,
                 bool augment, int64_t seed)
      : files_(std::move(files)), augment_(augment), seed_(seed) {
    for (size_t c = 0; c < tables_.size(); ++c) {
      for (size_t i = 0; i < tables_[c].size(); ++i) {
        tables_[c][i] = static_cast<float>((static_cast<double>(i) / 255.0 - statistics.mean[c]) /
                                           statistics.deviation[c]);
      }
    }
  }
  int64_t size() const override { return files_->size(); }
  SampleSpec spec() const override {
    return {.input_shape = {3, kCifarSide, kCifarSide}, .classes = kCifarClasses};
  }
  std::string NameOf(int64_t index) const override {
    return absl::StrCat("sample ", index, " (", files_->NameOf(index), ")");
  }
  // Labels were read when the files were opened; normalised pixels depend on the statistics.
  uint64_t Digest() const override {
    std::string labels;
    for (int64_t i = 0; i < size(); ++i) labels += static_cast<char>(files_->Record(i)[0]);
    Xxh3Stream stream;
    stream.Update(labels.data(), labels.size());
    stream.Update(tables_.data(), sizeof tables_);
    return stream.Finish().low;
  }
  absl::Status Fill(int64_t epoch, int64_t index, void* inputs, int64_t* targets) const override {
    const uint8_t* record = files_->Record(index);
    *targets = record[0];
    auto* values = static_cast<float*>(inputs);
    if (!augment_) {
      for (int64_t i = 0; i < 3 * kCifarPixels; ++i) {
        values[i] = tables_[static_cast<size_t>(i / kCifarPixels)][record[1 + i]];
      }
      return absl::OkStatus();
    }
    const Window window =
        DrawWindow(DeriveSeed(seed_, SeedPurpose::kAugmentation, {epoch, index, 0}));
    for (size_t c = 0; c < tables_.size(); ++c) {
      const auto plane = static_cast<int64_t>(c) * kCifarPixels;
      FillPlane(record + 1 + plane, tables_[c], window, values + plane);
    }
    return absl::OkStatus();
  }

 private:
  using Table = std::array<float, 256>;

  static void FillPlane(const uint8_t* pixels, const Table& table, const Window& window,
                        float* out) {
    for (int64_t y = 0; y < kCifarSide; ++y) {
      const int64_t row = y + window.row;
      for (int64_t x = 0; x < kCifarSide; ++x) {
        const int64_t column = (window.flip ? kCifarSide - 1 - x : x) + window.column;
        const bool inside = row >= 0 && row < kCifarSide && column >= 0 && column < kCifarSide;
        *out++ = table[inside ? pixels[row * kCifarSide + column] : 0];
      }
    }
  }

  const std::shared_ptr<const CifarFiles> files_;
  const bool augment_;
  const int64_t seed_;
  std::array<Table, 3> tables_;
};

absl::StatusOr<ChannelStatistics> StatisticsFor(const TrainConfig& config,
                                                const CifarFiles* training) {
  if (config.data_normalize == "none") return ChannelStatistics{{0, 0, 0}, {1, 1, 1}};
  if (config.data_normalize == "imagenet") {
    ChannelStatistics statistics;
    std::copy_n(kImageNetScale.mean.begin(), 3, statistics.mean.begin());
    std::copy_n(kImageNetScale.deviation.begin(), 3, statistics.deviation.begin());
    return statistics;
  }
  if (training != nullptr) return ComputeChannelStatistics(*training);
  auto files = CifarFiles::Open(config.data_dir, DataSplit::kTrain);
  if (!files.ok()) return files.status();
  return ComputeChannelStatistics(**files);
}

}  // namespace

DatasetOr OpenCifar10(const TrainConfig& config, DataSplit split,
                      const std::string& /*cache_dir*/) {
  auto files = CifarFiles::Open(config.data_dir, split);
  if (!files.ok()) return files.status();
  const bool training = split == DataSplit::kTrain;
  absl::StatusOr<ChannelStatistics> statistics =
      StatisticsFor(config, training ? files->get() : nullptr);
  if (!statistics.ok()) return statistics.status();
  const int64_t classes = ClassesFor(config, kCifarClasses);
  for (int64_t index = 0; classes < kCifarClasses && index < (*files)->size(); ++index) {
    if (absl::Status status =
            CheckLabel(config, (*files)->NameOf(index), index, (*files)->Record(index)[0], classes);
        !status.ok()) {
      return status;
    }
  }
  const bool augment = training && config.data_augment != "none";
  return std::make_shared<const Cifar10Dataset>(*std::move(files), *statistics, augment,
                                                config.train_seed);
}

}  // namespace ddprun
