// The data kinds of pictures in one file or none (cifar10, idx, synthetic): what a sample holds,
// and what is refused.
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
#include "tests/unit/data_samples.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace ddprun
