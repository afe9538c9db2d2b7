// The `synthetic` data kind: samples made from their numbers alone, fast, and with something to
// learn in them, so that a training shows whether it works. Images: a pattern of 8 × 8 fields for
// each class under uniform noise of the same strength. Tokens: a chain over up to 256 tokens in
// which nine of ten follow from the one before. The same whatever train.seed is.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/data_checks.h"
#include "worker/data/data_kinds.h"
#include "worker/data/token_task.h"
#include "worker/parallel/seeds.h"

namespace ddprun {
namespace {

constexpr int64_t kSyntheticSeed = 0;
constexpr int64_t kPatterns = 2;  // beside the numbers of the splits, 0 and 1
// What people take such images for: small ones for CIFAR, larger ones for ImageNet.
constexpr int64_t kSmallImage = 64;
constexpr int64_t kClassesOfSmallImages = 10;
constexpr int64_t kClassesOfLargeImages = 1000;
constexpr int64_t kFields = 8;
constexpr int64_t kAlphabetMax = 256;
constexpr int64_t kSurpriseOneIn = 10;
// A test split of a tenth.
constexpr int64_t kTestShare = 10;

SampleRandom RandomOf(int64_t stream, int64_t index) {
  return SampleRandom(DeriveSeed(kSyntheticSeed, SeedPurpose::kSynthetic, {stream, index, 0}));
}

int64_t SizeOf(const TrainConfig& config, DataSplit split) {
  return split == DataSplit::kTrain ? config.data_samples
                                    : std::max<int64_t>(1, config.data_samples / kTestShare);
}

int64_t StreamOf(DataSplit split) {
  return split == DataSplit::kTrain ? 0 : 1;
}

class SyntheticImages : public Dataset {
 public:
  SyntheticImages(const TrainConfig& config, DataSplit split, int64_t classes)
      : stream_(StreamOf(split)),
        size_(SizeOf(config, split)),
        channels_(config.data_channels),
        side_(config.data_image_size),
        classes_(classes),
        patterns_(static_cast<size_t>(classes * channels_ * kFields * kFields)) {
    SampleRandom random = RandomOf(kPatterns, 0);
    for (float& value : patterns_) value = static_cast<float>(random.Normal());
  }
  int64_t size() const override { return size_; }
  SampleSpec spec() const override {
    return {.input_shape = {channels_, side_, side_}, .classes = classes_};
  }
  absl::Status Fill(int64_t /*epoch*/, int64_t index, void* inputs,
                    int64_t* targets) const override {
    SampleRandom random = RandomOf(stream_, index);
    const int64_t label = random.Below(classes_);
    *targets = label;
    auto* values = static_cast<float*>(inputs);
    for (int64_t row = 0; row < channels_ * side_; ++row) {
      const int64_t field_row = (row % side_) * kFields / side_;
      const size_t begin =
          static_cast<size_t>(((label * channels_ + row / side_) * kFields + field_row) * kFields);
      FillRow(&patterns_[begin], &random, values + row * side_);
    }
    return absl::OkStatus();
  }

 private:
  // Four pixels of noise from each number that is drawn, with deviation 1.
  void FillRow(const float* pattern, SampleRandom* random, float* out) const {
    constexpr float kScale = 3.4641016F / 65536;  // √12 over the range
    for (int64_t x = 0; x < side_; x += 4) {
      const uint64_t bits = random->Next();
      for (int64_t i = 0; i < std::min<int64_t>(4, side_ - x); ++i) {
        const auto noise = static_cast<float>((bits >> (16 * i)) & 0xffff);
        out[x + i] = pattern[(x + i) * kFields / side_] + (noise - 32767.5F) * kScale;
      }
    }
  }

  const int64_t stream_;
  const int64_t size_;
  const int64_t channels_;
  const int64_t side_;
  const int64_t classes_;
  std::vector<float> patterns_;
};

class SyntheticTokens : public Dataset {
 public:
  SyntheticTokens(const TrainConfig& config, DataSplit split, const TokenTask& task)
      : stream_(StreamOf(split)),
        size_(SizeOf(config, split)),
        seed_(config.train_seed),
        task_(task),
        follower_(static_cast<size_t>(std::min(task.vocabulary, kAlphabetMax))) {
    SampleRandom random = RandomOf(kPatterns, 1);
    for (int64_t& token : follower_) token = random.Below(Alphabet());
  }
  int64_t size() const override { return size_; }
  SampleSpec spec() const override {
    return {.input_shape = {task_.length},
            .input_type = InputType::kInt64,
            .target_shape = {task_.length},
            .classes = task_.vocabulary,
            .ignores = task_.masked};
  }
  absl::Status Fill(int64_t epoch, int64_t index, void* inputs, int64_t* targets) const override {
    SampleRandom random = RandomOf(stream_, index);
    std::vector<int64_t> window(static_cast<size_t>(task_.window()));
    int64_t token = random.Below(Alphabet());
    for (int64_t& place : window) {
      place = token;
      token = random.Below(kSurpriseOneIn) == 0 ? random.Below(Alphabet())
                                                : follower_[static_cast<size_t>(token)];
    }
    MakeTask(task_, window.data(),
             SampleRandom(DeriveSeed(seed_, SeedPurpose::kAugmentation, {epoch, index, 0})),
             static_cast<int64_t*>(inputs), targets);
    return absl::OkStatus();
  }

 private:
  int64_t Alphabet() const { return static_cast<int64_t>(follower_.size()); }

  const int64_t stream_;
  const int64_t size_;
  const int64_t seed_;
  const TokenTask task_;
  std::vector<int64_t> follower_;  // of each token of the alphabet
};

}  // namespace

DatasetOr OpenSynthetic(const TrainConfig& config, DataSplit split,
                        const std::string& /*cache_dir*/) {
  if (config.model_name == "bert" || config.model_name == "gpt" || config.data_task != "auto") {
    absl::StatusOr<TokenTask> task = ReadTokenTask(config);
    if (!task.ok()) return task.status();
    return std::make_shared<const SyntheticTokens>(config, split, *task);
  }
  const int64_t classes =
      ClassesFor(config, config.data_image_size <= kSmallImage ? kClassesOfSmallImages
                                                               : kClassesOfLargeImages);
  return std::make_shared<const SyntheticImages>(config, split, classes);
}

}  // namespace ddprun
