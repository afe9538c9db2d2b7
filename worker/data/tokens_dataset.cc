// The `tokens` data kind: windows of a file of tokens, one after the other. Sample k of the causal
// task takes tokens [k·length, (k+1)·length] (the last one is only a target, and the first input of
// the next sample), of the masked task [k·length, (k+1)·length).
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "worker/data/data_kinds.h"
#include "worker/data/token_file.h"
#include "worker/data/token_task.h"
#include "worker/parallel/seeds.h"

namespace ddprun {
namespace {

constexpr int64_t kDigestWindows = 16;
constexpr int64_t kDigestTokens = 1024;  // of each

absl::Status TooLarge(const TokenFile& file, const TokenTask& task, int64_t place, int64_t token) {
  return absl::InvalidArgumentError(absl::StrCat(
      file.path(), ": token ", token, " at byte ", place * file.token_bytes(), " (sample ",
      place / task.length, "), but the vocabulary has the tokens 0 to ", task.vocabulary - 1,
      "; set [model] vocab_size to at least ", token + 1, ", or check [data] token_type"));
}

class TokensDataset : public Dataset {
 public:
  TokensDataset(TokenFile file, const TokenTask& task, int64_t seed)
      : file_(std::move(file)),
        task_(task),
        seed_(seed),
        size_((file_.tokens() - (task.window() - task.length)) / task.length) {}
  int64_t size() const override { return size_; }
  SampleSpec spec() const override {
    return {.input_shape = {task_.length},
            .input_type = InputType::kInt64,
            .target_shape = {task_.length},
            .classes = task_.vocabulary,
            .ignores = task_.masked};
  }
  std::string NameOf(int64_t index) const override {
    return absl::StrCat("sample ", index, " (tokens from ", index * task_.length, " on in ",
                        file_.path(), ")");
  }
  // Of the file's length and of windows spread over it, so that little of a large file is read.
  uint64_t Digest() const override {
    Xxh3Stream stream;
    stream.UpdateU64(static_cast<uint64_t>(file_.tokens()));
    std::vector<int64_t> window(static_cast<size_t>(std::min(kDigestTokens, file_.tokens())));
    const auto length = static_cast<int64_t>(window.size());
    for (int64_t i = 0; i < kDigestWindows; ++i) {
      file_.Read((file_.tokens() - length) / (kDigestWindows - 1) * i, length, window.data());
      stream.Update(window.data(), window.size() * sizeof window[0]);
    }
    return stream.Finish().low;
  }
  absl::Status Fill(int64_t epoch, int64_t index, void* inputs, int64_t* targets) const override {
    std::vector<int64_t> window(static_cast<size_t>(task_.window()));
    const int64_t begin = index * task_.length;
    file_.Read(begin, task_.window(), window.data());
    // A job's files were looked at wholly before it started, but on one machine.
    const auto largest = std::max_element(window.begin(), window.end());
    if (*largest >= task_.vocabulary) {
      return TooLarge(file_, task_, begin + (largest - window.begin()), *largest);
    }
    MakeTask(task_, window.data(),
             SampleRandom(DeriveSeed(seed_, SeedPurpose::kAugmentation, {epoch, index, 0})),
             static_cast<int64_t*>(inputs), targets);
    return absl::OkStatus();
  }
  // Every token, whatever time it takes: 0.2 s a GB that is in memory.
  absl::Status Check(double /*seconds*/) const override {
    const int64_t place = file_.FindAtLeast(task_.vocabulary);
    if (place == file_.tokens()) return absl::OkStatus();
    int64_t token = 0;
    file_.Read(place, 1, &token);
    return TooLarge(file_, task_, place, token);
  }

 private:
  const TokenFile file_;
  const TokenTask task_;
  const int64_t seed_;
  const int64_t size_;
};

absl::StatusOr<TokenFile> FindTokenFile(const TrainConfig& config, DataSplit split) {
  const std::vector<const char*> names =
      split == DataSplit::kTrain ? std::vector{"train.bin"} : std::vector{"val.bin", "test.bin"};
  const int token_bytes = config.data_token_type == "uint16" ? 2 : 4;
  for (const char* name : names) {
    absl::StatusOr<TokenFile> file =
        TokenFile::Open(absl::StrCat(config.data_dir, "/", name), token_bytes);
    if (!absl::IsNotFound(file.status())) return file;
  }
  return absl::NotFoundError(absl::StrCat(
      config.data_dir, "/", names[0],
      ": no such data file; [data] kind tokens needs train.bin and, for evaluation, test.bin or "
      "val.bin (`ddprun tokens` makes them from text)"));
}

absl::Status CheckSize(const TokenFile& file, const TokenTask& task) {
  if (file.tokens() >= task.window()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      file.path(), ": holds ", file.tokens(), " tokens, one sample needs ", task.window(),
      "; set a smaller [model] sequence_length, or check [data] token_type"));
}

}  // namespace

DatasetOr OpenTokens(const TrainConfig& config, DataSplit split, const std::string& /*cache_dir*/) {
  absl::StatusOr<TokenTask> task = ReadTokenTask(config);
  if (!task.ok()) return task.status();
  absl::StatusOr<TokenFile> file = FindTokenFile(config, split);
  if (!file.ok()) return file.status();
  if (task->vocabulary == 0) {
    // The model does not say; its training data do.
    absl::StatusOr<TokenFile> training = FindTokenFile(config, DataSplit::kTrain);
    if (!training.ok()) return training.status();
    task->vocabulary = training->LargestToken() + 1;
  }
  if (absl::Status status = CheckSize(*file, *task); !status.ok()) return status;
  return std::make_shared<const TokensDataset>(*std::move(file), *task, config.train_seed);
}

}  // namespace ddprun
