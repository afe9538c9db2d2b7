// Whether all ranks have the same data: what tells two sets of files apart, and what is said.
#include "worker/trainer/same_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/data_files.h"
#include "tests/unit/gloo_ranks.h"
#include "worker/data/data_kinds.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// Of each kind a small set of files. `change`: 0 as it is; 1 a sample less or more; 2 equally many,
// but another label, name or token.
struct Kind {
  const char* name;
  void (*write)(const std::string& dir, int change);
};

void WriteIdxSet(const std::string& dir, int change) {
  std::vector<uint8_t> labels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const char* prefix : {"train", "t10k"}) WriteIdxSplit(dir, prefix, labels);
  if (change == 1) labels.pop_back();
  if (change == 2) labels[4] = 5;
  WriteIdxSplit(dir, "train", labels);
}

void WriteCifarSet(const std::string& dir, int change) {
  WriteCifar10(dir, change == 1 ? 3 : 4, 4);
  if (change == 2) WriteByte(dir + "/data_batch_3.bin", 3073, 9);
}

void WriteTokenSet(const std::string& dir, int change) {
  std::vector<uint32_t> tokens(change == 1 ? 400 : 500, 7);
  if (change == 2) tokens[333] = 8;
  tokens[0] = 9;
  WriteTokens(dir + "/train.bin", 2, tokens);
}

// The headers of pictures are looked at later.
void WritePictureSet(const std::string& dir, int change) {
  for (const char* name : {"train/cat/a.jpg", "train/cat/b.jpg", "train/dog/c.jpg"}) {
    const std::filesystem::path path = dir + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    WriteBytes(path, {1});
  }
  if (change == 1) WriteBytes(dir + "/train/cat/d.jpg", {1});
  if (change == 2) {
    std::filesystem::rename(dir + "/train/cat/b.jpg", dir + "/train/dog/b.jpg");
  }
}

constexpr Kind kKinds[] = {{"idx", WriteIdxSet},
                           {"cifar10", WriteCifarSet},
                           {"tokens", WriteTokenSet},
                           {"image_folder", WritePictureSet}};

TrainConfig ConfigOf(const Kind& kind, const std::string& dir) {
  TrainConfig config;
  config.model_name = std::string(kind.name) == "tokens" ? "gpt" : "resnet18";
  config.model_sequence_length = 16;
  config.model_vocab_size = 16;
  config.data_kind = kind.name;
  config.data_dir = dir;
  config.data_augment = "none";
  config.train_evaluate = false;
  return config;
}

TEST(SameData, EachKindTellsOtherFilesApartOnAllRanks) {
  for (const Kind& kind : kKinds) {
    for (const int change : {0, 1, 2}) {
      DataFolder usual, changed;
      kind.write(usual.path(), 0);
      kind.write(changed.path(), change);
      const auto results = RunOverGloo(3, [&](Communicator& communicator) -> std::string {
        const std::string dir = communicator.rank() == 1 ? changed.path() : usual.path();
        const auto data = OpenDataset(ConfigOf(kind, dir), DataSplit::kTrain, "");
        if (!data.ok()) return std::string(data.status().message());
        const absl::Status status =
            AgreeOnData(**data, {"a", "b", "a"}, "training", dir, &communicator, at::kCPU);
        if (!status.ok() && !absl::IsFailedPrecondition(status)) return "worth no restart";
        return std::string(status.message());
      });
      if (change == 0) {
        EXPECT_THAT(results, Each("")) << kind.name;
        continue;
      }
      EXPECT_THAT(
          results,
          Each(AllOf(HasSubstr("the ranks do not have the same training data: rank 0 on a: "),
                     HasSubstr("; rank 1 on b: "), HasSubstr("[data] dir"))))
          << kind.name << " " << change;
    }
  }
}

TEST(SameData, OnlyThoseThatDifferFromRankZeroAreNamed) {
  const std::vector<std::string> hosts = {"a", "b", "c", "c", "b"};
  EXPECT_TRUE(CompareData({"x", "x", "x", "x", "x"}, hosts, "test", "/data").ok());
  EXPECT_THAT(
      std::string(CompareData({"x", "x", "y", "y", "z"}, hosts, "test", "/data").message()),
      AllOf(HasSubstr("same test data: rank 0 on a: x; ranks 2, 3 on c: y; rank 4 on b: z. "),
            Not(HasSubstr("rank 1"))));
  const std::vector<std::string> many = {"0", "1", "2", "3", "4", "5"};
  EXPECT_THAT(std::string(CompareData(many, many, "test", "/data").message()),
              AllOf(HasSubstr("; rank 4 on 4: 4; and more. "), Not(HasSubstr("rank 5"))));
}

}  // namespace
}  // namespace ddprun
