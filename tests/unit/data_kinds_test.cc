// The data kinds that are no folder of pictures: what a sample holds, and what is refused.
#include "worker/data/data_kinds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/unit/data_files.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

struct Sample {
  std::vector<float> pixels;
  std::vector<int64_t> tokens;
  std::vector<int64_t> targets;
  bool operator==(const Sample&) const = default;
};

Sample Take(const Dataset& data, int64_t epoch, int64_t index) {
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

class Cifar10Test : public DataKindsTest {
 protected:
  Cifar10Test() {
    config_.model_name = "resnet18";
    config_.data_kind = "cifar10";
    config_.data_dir = folder_.path();
    config_.data_augment = "none";
    WriteCifar10(folder_.path(), 12, 5);
  }
  std::string File(const std::string& name) { return folder_.path() + "/" + name; }
};

TEST_F(Cifar10Test, ASampleIsItsRecordNormalisedByTheTrainingFiles) {
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->size(), 60);
  EXPECT_EQ((*data)->spec().input_shape, (std::vector<int64_t>{3, 32, 32}));
  EXPECT_EQ((*data)->spec().classes, 10);
  // By the definition: mean and deviation of each channel over all pixels of all files.
  std::array<double, 3> sum = {}, squares = {};
  for (int64_t i = 0; i < 60; ++i) {
    const std::vector<uint8_t> record =
        ReadRecord(File(absl::StrCat("data_batch_", 1 + i / 12, ".bin")), i % 12);
    for (size_t p = 0; p < 3072; ++p) {
      sum[p / 1024] += record[1 + p] / 255.0;
      squares[p / 1024] += record[1 + p] / 255.0 * record[1 + p] / 255.0;
    }
  }
  for (int64_t i : {0, 11, 12, 59}) {
    const std::vector<uint8_t> record =
        ReadRecord(File(absl::StrCat("data_batch_", 1 + i / 12, ".bin")), i % 12);
    const Sample sample = Take(**data, 3, i);
    EXPECT_EQ(sample.targets, std::vector<int64_t>{record[0]});
    for (size_t p = 0; p < 3072; ++p) {
      const double mean = sum[p / 1024] / (60 * 1024);
      const double deviation = std::sqrt(squares[p / 1024] / (60 * 1024) - mean * mean);
      ASSERT_NEAR(sample.pixels[p], (record[1 + p] / 255.0 - mean) / deviation, 1e-5)
          << i << " " << p;
    }
  }
  EXPECT_THAT((*data)->NameOf(13),
              AllOf(HasSubstr("sample 13"), HasSubstr("data_batch_2.bin, record 1")));
  // The test split is normalised by the same numbers.
  const auto test = Open(DataSplit::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_EQ((*test)->size(), 5);
  const std::vector<uint8_t> record = ReadRecord(File("test_batch.bin"), 4);
  const double mean = sum[2] / (60 * 1024);
  EXPECT_NEAR(Take(**test, 0, 4).pixels[3071],
              (record[3072] / 255.0 - mean) / std::sqrt(squares[2] / (60 * 1024) - mean * mean),
              1e-5);
}

// torchvision: RandomCrop(32, padding=4) and RandomHorizontalFlip, the border black.
TEST_F(Cifar10Test, AugmentationCutsAWindowOfThePaddedPictureAndMirrorsIt) {
  config_.data_normalize = "none";
  const auto plain = Open();
  config_.data_augment = "auto";
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  std::set<std::vector<int64_t>> windows;
  for (int64_t epoch = 0; epoch < 100; ++epoch) {
    const Sample sample = Take(**data, epoch, 7);
    EXPECT_EQ(sample, Take(**data, epoch, 7)) << "the same whenever it is asked for";
    const Sample original = Take(**plain, epoch, 7);
    EXPECT_EQ(sample.targets, original.targets);
    int fitting = 0;
    for (int64_t row = -4; row <= 4; ++row) {
      for (int64_t column = -4; column <= 4; ++column) {
        for (int64_t flip : {0, 1}) {
          if (sample.pixels != Shifted(original.pixels, row, column, flip == 1)) continue;
          ++fitting;
          windows.insert({row, column, flip});
        }
      }
    }
    EXPECT_EQ(fitting, 1) << epoch;
  }
  EXPECT_GT(windows.size(), 60u) << "of 162";
  EXPECT_EQ(Take(**Open(DataSplit::kTest), 5, 2), Take(**Open(DataSplit::kTest), 6, 2))
      << "the test split is never augmented";
  config_.train_seed = 9;
  int different = 0;
  for (int64_t i = 0; i < 20; ++i) different += Take(**Open(), 0, i) != Take(**data, 0, i) ? 1 : 0;
  EXPECT_GT(different, 15);
}

TEST_F(Cifar10Test, TheFilesMayLieInTheFolderOfThePublishedArchive) {
  const std::string below = folder_.path() + "/cifar-10-batches-bin";
  std::filesystem::create_directory(below);
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                           "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) {
    std::filesystem::rename(File(name), below + "/" + name);
  }
  EXPECT_TRUE(Open().ok()) << Open().status();
  EXPECT_TRUE(Open(DataSplit::kTest).ok());
}

TEST_F(Cifar10Test, DamagedFilesAreRefusedByNameAndRecord) {
  WriteByte(File("data_batch_3.bin"), 3073 * 5, 10);
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("data_batch_3.bin: record 5 has label 10"), HasSubstr("copy")));
  std::filesystem::resize_file(File("data_batch_2.bin"), 3073 * 2 + 1);
  EXPECT_THAT(Error(), HasSubstr("data_batch_2.bin: 6147 bytes are no whole number of records"));
  std::filesystem::resize_file(File("data_batch_1.bin"), 0);
  EXPECT_THAT(Error(), HasSubstr("data_batch_1.bin: is empty"));
  std::filesystem::remove(File("data_batch_1.bin"));
  EXPECT_THAT(Error(), HasSubstr("data_batch_1.bin: no such data file"));
}

TEST_F(Cifar10Test, LabelsAboveTheModelsClassesAreRefusedByFileAndSample) {
  config_.model_classes = 10;
  EXPECT_TRUE(Open().ok());
  config_.model_classes = 3;
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("data_batch_1.bin, record 3: label 3 of sample 3, but [model] "
                              "classes is 3"),
                    HasSubstr("at least 4")));
}

class IdxTest : public DataKindsTest {
 protected:
  IdxTest() {
    config_.model_name = "simple_cnn";
    config_.data_kind = "idx";
    config_.data_dir = folder_.path();
  }
};

TEST_F(IdxTest, LabelsAreHeldAgainstTheClassesOfModelAndTrainingData) {
  WriteIdxSplit(folder_.path(), "train", {0, 1, 4, 2});
  WriteIdxSplit(folder_.path(), "t10k", {0, 5});
  EXPECT_EQ((*Open())->spec().classes, 5);
  EXPECT_THAT(Error(DataSplit::kTest),
              AllOf(HasSubstr("t10k-labels-idx1-ubyte: label 5 of sample 1"),
                    HasSubstr("the training data have 5 classes"), HasSubstr("[model] classes")));
  config_.model_classes = 6;
  EXPECT_TRUE(Open(DataSplit::kTest).ok());
  EXPECT_EQ((*Open(DataSplit::kTest))->spec().classes, 6);
  config_.model_classes = 4;
  EXPECT_THAT(Error(),
              HasSubstr("train-labels-idx1-ubyte: label 4 of sample 2, but [model] classes is 4"));
}

class TokensTest : public DataKindsTest {
 protected:
  TokensTest() {
    config_.model_name = "gpt";
    config_.model_sequence_length = 4;
    config_.model_vocab_size = 100;
    config_.data_kind = "tokens";
    config_.data_dir = folder_.path();
    config_.data_mask_token = 99;
    std::vector<uint32_t> tokens(41);
    std::iota(tokens.begin(), tokens.end(), 0);
    WriteTokens(File(), 2, tokens);
  }
  std::string File() { return folder_.path() + "/train.bin"; }
};

TEST_F(TokensTest, EachTokenButTheFirstIsATargetOnce) {
  for (int bytes : {2, 4}) {
    std::vector<uint32_t> tokens(41);
    std::iota(tokens.begin(), tokens.end(), 0);
    WriteTokens(File(), bytes, tokens);
    config_.data_token_type = bytes == 2 ? "uint16" : "uint32";
    const auto data = Open();
    ASSERT_TRUE(data.ok()) << data.status();
    ASSERT_EQ((*data)->size(), 10);
    const SampleSpec spec = (*data)->spec();
    EXPECT_EQ(spec.input_type, InputType::kInt64);
    EXPECT_EQ(spec.input_shape, std::vector<int64_t>{4});
    EXPECT_EQ(spec.target_shape, std::vector<int64_t>{4});
    EXPECT_EQ(spec.classes, 100);
    EXPECT_FALSE(spec.ignores);
    EXPECT_EQ(Take(**data, 0, 0), (Sample{{}, {0, 1, 2, 3}, {1, 2, 3, 4}}));
    EXPECT_EQ(Take(**data, 7, 9), (Sample{{}, {36, 37, 38, 39}, {37, 38, 39, 40}}));
    EXPECT_THAT((*data)->NameOf(9), HasSubstr("sample 9 (tokens from 36 on in "));
  }
}

TEST_F(TokensTest, OneTokenLessIsOneSampleLess) {
  std::filesystem::resize_file(File(), 2 * 40);
  EXPECT_EQ((*Open())->size(), 9);
  config_.data_task = "masked";
  EXPECT_EQ((*Open())->size(), 10) << "no token is a target only";
}

// Devlin et al.: 15 % of the tokens, of them 80 % masked, 10 % random, 10 % as they were.
TEST_F(TokensTest, BertHidesTokensAndAsksForThem) {
  config_.model_name = "bert";
  config_.model_sequence_length = 64;
  config_.model_vocab_size = 50000;
  config_.data_mask_token = 103;
  WriteTokens(File(), 2, std::vector<uint32_t>(64 * 50, 7));
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE((*data)->spec().ignores);
  int64_t chosen = 0, masked = 0, kept = 0, random = 0;
  constexpr int kEpochs = 20;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (int64_t i = 0; i < 50; ++i) {
      const Sample sample = Take(**data, epoch, i);
      ASSERT_EQ(sample, Take(**data, epoch, i));
      int64_t here = 0;
      for (size_t place = 0; place < 64; ++place) {
        if (sample.targets[place] == kIgnoredTarget) {
          ASSERT_EQ(sample.tokens[place], 7);
          continue;
        }
        ASSERT_EQ(sample.targets[place], 7);
        ++here;
        masked += sample.tokens[place] == 103 ? 1 : 0;
        kept += sample.tokens[place] == 7 ? 1 : 0;
        random += sample.tokens[place] != 103 && sample.tokens[place] != 7 ? 1 : 0;
      }
      ASSERT_GE(here, 1);
      chosen += here;
    }
  }
  EXPECT_NEAR(static_cast<double>(chosen) / (kEpochs * 50 * 64), 0.15, 0.005);
  EXPECT_NEAR(static_cast<double>(masked) / static_cast<double>(chosen), 0.8, 0.02);
  EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(chosen), 0.1, 0.02);
  EXPECT_NEAR(static_cast<double>(random) / static_cast<double>(chosen), 0.1, 0.02);
  EXPECT_NE(Take(**data, 0, 3).targets, Take(**data, 1, 3).targets) << "others in each epoch";
}

TEST_F(TokensTest, OneTokenIsHiddenAtLeast) {
  config_.data_task = "masked";
  config_.data_mask_probability = 1e-9;
  for (int64_t i = 0; i < 10; ++i) {
    const Sample sample = Take(**Open(), 0, i);
    EXPECT_EQ(std::count(sample.targets.begin(), sample.targets.end(), kIgnoredTarget), 3);
  }
}

TEST_F(TokensTest, BadFilesAndSizesAreRefusedByName) {
  EXPECT_THAT(Error(DataSplit::kTest),
              AllOf(HasSubstr("/val.bin: no such data file"), HasSubstr("test.bin")));
  WriteTokens(folder_.path() + "/val.bin", 2, {1, 2, 3, 4, 5});
  EXPECT_EQ((*Open(DataSplit::kTest))->size(), 1);
  config_.model_vocab_size = 40;
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("train.bin: token 40 at byte 80 (sample 10), but the vocabulary has "
                              "the tokens 0 to 39"),
                    HasSubstr("at least 41")));
  config_.model_vocab_size = 41;
  EXPECT_TRUE(Open().ok());
  config_.model_sequence_length = 41;
  EXPECT_THAT(Error(), HasSubstr("train.bin: holds 41 tokens, one sample needs 42"));
  std::filesystem::resize_file(File(), 7);
  EXPECT_THAT(Error(), HasSubstr("train.bin: 7 bytes are no whole number of uint16 tokens"));
  std::filesystem::resize_file(File(), 0);
  EXPECT_THAT(Error(), HasSubstr("train.bin: is empty"));
  config_.data_task = "masked";
  config_.data_mask_token = 41;
  EXPECT_THAT(Error(),
              HasSubstr("[data] mask_token: is 41, but the vocabulary has the tokens 0 to 40"));
  config_.model_name = "torchscript";
  config_.model_sequence_length = 0;
  EXPECT_THAT(Error(), HasSubstr("[model] sequence_length: missing"));
}

// A token far behind the first block of the search, and in each type.
TEST_F(TokensTest, EveryTokenOfALongFileIsLookedAt) {
  for (int bytes : {2, 4}) {
    std::vector<uint32_t> tokens(100'000, 1);
    tokens[77'777] = 65'000;
    WriteTokens(File(), bytes, tokens);
    config_.data_token_type = bytes == 2 ? "uint16" : "uint32";
    EXPECT_THAT(Error(), HasSubstr(absl::StrCat("token 65000 at byte ", bytes * 77'777, " (sample ",
                                                77'777 / 4, ")")));
  }
  config_.model_name = "torchscript";
  config_.model_vocab_size = 0;
  EXPECT_EQ((*Open())->spec().classes, 65'001) << "the data say it where the model does not";
}

class SyntheticTest : public DataKindsTest {
 protected:
  SyntheticTest() {
    config_.model_name = "resnet18";
    config_.data_kind = "synthetic";
    config_.data_samples = 3000;
    config_.data_image_size = 16;
  }
};

TEST_F(SyntheticTest, ImagesComeFromTheirNumberAloneAndShowTheirClass) {
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->size(), 3000);
  EXPECT_EQ((*Open(DataSplit::kTest))->size(), 300);
  EXPECT_EQ((*data)->spec().input_shape, (std::vector<int64_t>{3, 16, 16}));
  EXPECT_EQ((*data)->spec().classes, 10);
  EXPECT_EQ(Take(**data, 0, 5), Take(**data, 9, 5));
  EXPECT_NE(Take(**data, 0, 5), Take(**Open(DataSplit::kTest), 0, 5));
  // Means of each class in the training split tell the classes of the test split.
  std::map<int64_t, std::vector<double>> means;
  for (int64_t i = 0; i < 500; ++i) {
    const Sample sample = Take(**data, 0, i);
    auto& mean = means[sample.targets[0]];
    mean.resize(sample.pixels.size());
    for (size_t p = 0; p < mean.size(); ++p) mean[p] += sample.pixels[p] / 50;
  }
  EXPECT_EQ(means.size(), 10u);
  int right = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const Sample sample = Take(**Open(DataSplit::kTest), 0, i);
    double best = 1e300;
    int64_t nearest = -1;
    for (const auto& [label, mean] : means) {
      double distance = 0;
      for (size_t p = 0; p < mean.size(); ++p) distance += std::pow(mean[p] - sample.pixels[p], 2);
      if (distance < best) best = distance, nearest = label;
    }
    right += nearest == sample.targets[0] ? 1 : 0;
  }
  EXPECT_GT(right, 95);
  config_.data_image_size = 65;
  EXPECT_EQ((*Open())->spec().classes, 1000);
  config_.model_classes = 7;
  EXPECT_EQ((*Open())->spec().classes, 7);
}

TEST_F(SyntheticTest, TokensFollowARuleNineTimesOfTen) {
  config_.model_name = "gpt";
  config_.model_sequence_length = 32;
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->spec().classes, 50257);
  std::map<int64_t, std::map<int64_t, int>> followers;
  int total = 0;
  for (int64_t i = 0; i < 3000; ++i) {
    const Sample sample = Take(**data, 0, i);
    for (size_t place = 0; place < 32; ++place, ++total)
      ++followers[sample.tokens[place]][sample.targets[place]];
  }
  int usual = 0;
  for (const auto& [token, counts] : followers) {
    usual += std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
               return a.second < b.second;
             })->second;
  }
  EXPECT_LE(followers.size(), 256u);
  EXPECT_NEAR(static_cast<double>(usual) / total, 0.9, 0.01);
  config_.model_name = "bert";
  EXPECT_TRUE((*Open())->spec().ignores);
  config_.model_name = "torchscript";
  config_.data_task = "causal";
  EXPECT_THAT(Error(), HasSubstr("[model] vocab_size: missing"));
}

}  // namespace
}  // namespace ddprun
