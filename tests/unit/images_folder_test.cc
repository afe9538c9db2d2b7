// image_folder: what is found where, every fault of a folder or a file as one error that names it
// (issue 6, "Bad input"), and samples that depend on seed, epoch and number alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/unit/images_data.h"
#include "worker/data/image_folder_dataset.h"
#include "worker/data/image_resample.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class ImageFolderTest : public ::testing::Test {
 protected:
  ImageFolderTest() {
    std::string pattern = ::testing::TempDir() + "images_folder_XXXXXX";
    dir_ = mkdtemp(pattern.data());
    config_.data_kind = "image_folder";
    config_.data_dir = dir_;
    config_.data_image_size = 32;
    config_.data_resize = 40;
  }
  ~ImageFolderTest() override { std::filesystem::remove_all(dir_); }

  std::string Put(const std::string& name, const std::string& bytes) {
    const std::filesystem::path path = dir_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  // Two classes in both splits.
  void PutSet() {
    for (const char* name : {"train/cat/a.jpg", "train/cat/b.JPEG", "train/dog/c.png",
                             "val/cat/d.jpg", "val/dog/e.jpg"}) {
      Put(name, PictureBytes(std::string(name).ends_with("png") ? "rgb.png" : "rgb_420.jpg"));
    }
  }
  std::string OpenError(DataSplit split = DataSplit::kTrain) {
    const DatasetOr dataset = OpenImageFolder(config_, split, "");
    return dataset.ok() ? "no error" : absl::StrCat(dataset.status().ToString());
  }
  std::shared_ptr<const Dataset> Open(DataSplit split = DataSplit::kTrain) {
    const DatasetOr dataset = OpenImageFolder(config_, split, "");
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? *dataset : nullptr;
  }
  std::vector<float> Sample(const Dataset& dataset, int64_t epoch, int64_t index) {
    std::vector<float> inputs(static_cast<size_t>(ElementsOf(dataset)));
    int64_t target = -1;
    EXPECT_TRUE(dataset.Fill(epoch, index, inputs.data(), &target).ok());
    inputs.push_back(static_cast<float>(target));
    return inputs;
  }
  static int64_t ElementsOf(const Dataset& dataset) {
    const SampleSpec spec = dataset.spec();
    return spec.input_shape[0] * spec.input_shape[1] * spec.input_shape[2];
  }
  std::string FillError(const Dataset& dataset, int64_t index) {
    std::vector<float> inputs(static_cast<size_t>(ElementsOf(dataset)));
    int64_t target = 0;
    const absl::Status status = dataset.Fill(0, index, inputs.data(), &target);
    return status.ok() ? "no error" : std::string(status.message());
  }

  TrainConfig config_;
  std::string dir_;
};

TEST_F(ImageFolderTest, ClassesAndSamplesAreInTheOrderOfTheirNames) {
  Put("train/dog/2.png", "x");
  Put("train/dog/10.PNG", "x");
  Put("train/Zebra/z.jpeg", "x");
  Put("train/cat/b.jpg", "x");
  Put("elsewhere/linked.jpg", "x");
  std::filesystem::create_symlink(dir_ + "/elsewhere/linked.jpg", dir_ + "/train/cat/a.jpg");
  std::filesystem::create_directory_symlink(dir_ + "/train/cat", dir_ + "/train/eel");
  const auto folder = ImageFolder::List(dir_ + "/train");
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_THAT(folder->classes(), ElementsAre("Zebra", "cat", "dog", "eel"));
  std::vector<std::string> all;
  for (int64_t i = 0; i < folder->size(); ++i) {
    all.push_back(absl::StrCat(folder->Class(i), folder->Path(i).substr(dir_.size())));
  }
  EXPECT_THAT(all, ElementsAre("0/train/Zebra/z.jpeg", "1/train/cat/a.jpg", "1/train/cat/b.jpg",
                               "2/train/dog/10.PNG", "2/train/dog/2.png", "3/train/eel/a.jpg",
                               "3/train/eel/b.jpg"));
}

TEST_F(ImageFolderTest, OtherFilesAreCountedAndSaidByOneRank) {
  PutSet();
  Put("train/README.txt", "x");
  Put("train/cat/a.gif", "x");
  Put("train/cat/deeper/a.jpg", "x");
  unsetenv("RANK");
  testing::internal::CaptureStderr();
  EXPECT_EQ(Open()->size(), 3);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("train: 3 entries"), HasSubstr("train/README.txt")));
  setenv("RANK", "1", 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(Open()->size(), 3);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  unsetenv("RANK");
}

TEST_F(ImageFolderTest, AFolderThatIsMissingOrEmptyIsNamed) {
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr(dir_ + "/train")));
  config_.train_evaluate = false;
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr(dir_ + "/train")));
  std::filesystem::create_directories(dir_ + "/train");
  EXPECT_THAT(OpenError(), HasSubstr(dir_ + "/train has no class folders"));
  std::filesystem::create_directories(dir_ + "/train/cat");
  EXPECT_THAT(OpenError(), HasSubstr("train/cat has no .jpg, .jpeg or .png file (it is empty)"));
  Put("train/cat/a.gif", "x");
  EXPECT_THAT(OpenError(), HasSubstr("train/cat has no .jpg, .jpeg or .png file;"));
  Put("train/cat/a.jpg", "x");
  EXPECT_EQ(OpenError(), "no error");
}

// A store that is not mounted must not make the data smaller.
TEST_F(ImageFolderTest, ALinkThatLeadsNowhereIsNamed) {
  PutSet();
  Put("elsewhere/a.jpg", "x");
  std::filesystem::create_symlink(dir_ + "/elsewhere/a.jpg", dir_ + "/train/cat/link.jpg");
  std::filesystem::create_symlink(dir_ + "/elsewhere", dir_ + "/train/yak");
  std::filesystem::create_symlink(dir_ + "/elsewhere", dir_ + "/val/yak");
  EXPECT_EQ(OpenError(), "no error");
  std::filesystem::remove(dir_ + "/elsewhere/a.jpg");
  EXPECT_THAT(OpenError(), HasSubstr("train/cat/link.jpg: is a link to what cannot be reached"));
  std::filesystem::remove(dir_ + "/train/cat/link.jpg");
  std::filesystem::remove(dir_ + "/elsewhere");
  EXPECT_THAT(OpenError(), HasSubstr("train/yak: is a link to what cannot be reached"));
}

TEST_F(ImageFolderTest, ClassesThatOnlyOneSplitHasAreNamed) {
  PutSet();
  EXPECT_EQ(OpenError(), "no error");
  Put("train/ant/a.jpg", "x");
  Put("val/eel/a.jpg", "x");
  for (const DataSplit split : {DataSplit::kTrain, DataSplit::kTest}) {
    EXPECT_THAT(OpenError(split), AllOf(HasSubstr("must have the same class folders"),
                                        HasSubstr("only in " + dir_ + "/train: ant;"),
                                        HasSubstr("only in " + dir_ + "/val: eel")));
  }
  for (int i = 0; i < 10; ++i) Put(absl::StrCat("train/b", i, "/a.jpg"), "x");
  EXPECT_THAT(OpenError(), HasSubstr("ant, b0, b1, b2, b3 and 6 more"));
  config_.train_evaluate = false;  // then only one is looked at
  EXPECT_EQ(OpenError(), "no error");
}

TEST_F(ImageFolderTest, TheTestSplitIsValOrTest) {
  PutSet();
  std::filesystem::rename(dir_ + "/val", dir_ + "/test");
  EXPECT_EQ(Open(DataSplit::kTest)->size(), 2);
  std::filesystem::remove_all(dir_ + "/test");
  EXPECT_THAT(OpenError(), HasSubstr("neither a folder val nor a folder test"));
}

TEST_F(ImageFolderTest, ASizeLargerThanTheResizedPictureIsRefused) {
  PutSet();
  config_.data_image_size = 320;
  config_.data_resize = 256;
  EXPECT_THAT(OpenError(), HasSubstr("[data] resize: 256 is smaller than image_size = 320"));
  config_.train_evaluate = false;
  EXPECT_EQ(OpenError(), "no error");
  config_.data_augment = "none";
  EXPECT_THAT(OpenError(), HasSubstr("[data] resize"));
}

// TR26: not on the thread, and so not on how many there are.
TEST_F(ImageFolderTest, ASampleDependsOnSeedEpochAndNumberAlone) {
  PutSet();
  const auto dataset = Open();
  const std::vector<float> first = Sample(*dataset, 0, 1);
  EXPECT_EQ(first.back(), 0);
  EXPECT_EQ(Sample(*dataset, 0, 2).back(), 1);
  EXPECT_NE(Sample(*dataset, 1, 1), first);
  EXPECT_NE(Sample(*dataset, 0, 0), first);  // the same picture, another sample
  EXPECT_EQ(Sample(*Open(), 0, 1), first);
  std::vector<float> elsewhere;
  std::thread([&] { elsewhere = Sample(*dataset, 0, 1); }).join();
  EXPECT_EQ(elsewhere, first);
  config_.train_seed += 1;
  EXPECT_NE(Sample(*Open(), 0, 1), first);
}

TEST_F(ImageFolderTest, TestSamplesAreNeverAugmented) {
  PutSet();
  const auto test = Open(DataSplit::kTest);
  EXPECT_EQ(Sample(*test, 0, 1), Sample(*test, 5, 1));
  config_.data_augment = "none";
  const auto train = Open();
  EXPECT_EQ(Sample(*train, 0, 1), Sample(*train, 5, 1));
}

TEST_F(ImageFolderTest, PixelsAreNormalisedAsTheConfigurationSays) {
  PutSet();
  const std::vector<float> automatic = Sample(*Open(DataSplit::kTest), 0, 0);
  config_.data_normalize = "imagenet";
  EXPECT_EQ(Sample(*Open(DataSplit::kTest), 0, 0), automatic);
  config_.data_normalize = "none";
  const std::vector<float> plain = Sample(*Open(DataSplit::kTest), 0, 0);
  for (size_t i : {size_t{0}, size_t{32 * 32}, size_t{2 * 32 * 32 + 77}}) {
    EXPECT_GE(plain[i], 0);
    EXPECT_LE(plain[i], 1);
    const size_t channel = i / (32 * 32);
    EXPECT_EQ(automatic[i],
              (plain[i] - kImageNetScale.mean[channel]) / kImageNetScale.deviation[channel]);
  }
}

TEST_F(ImageFolderTest, ABadPictureIsNamedWithItsNumberWhenItIsMet) {
  PutSet();
  const std::string cut = Put("train/cat/a.jpg", PictureBytes("rgb_420.jpg").substr(0, 500));
  const std::string empty = Put("train/cat/b.JPEG", "");
  const std::string text = Put("train/dog/c.png", "not a picture");
  const auto dataset = Open();
  EXPECT_THAT(FillError(*dataset, 0), AllOf(HasSubstr(cut + " (sample 0) is no whole JPEG file ("),
                                            HasSubstr("; replace")));
  EXPECT_THAT(FillError(*dataset, 1), HasSubstr(empty + " (sample 1) is empty (0 bytes)"));
  EXPECT_THAT(FillError(*dataset, 2), HasSubstr(text + " (sample 2) is neither JPEG nor PNG"));
  std::filesystem::remove(text);
  EXPECT_THAT(FillError(*dataset, 2),
              HasSubstr(text + " (sample 2) cannot be opened: No such file or directory"));
}

// Names may hold anything but a slash: they break no line, and stay UTF-8 in result.json.
TEST_F(ImageFolderTest, AnOddNameIsShownInOneLine) {
  PutSet();
  Put("train/cat/\xc3\xa9\n\xff.jpg", "");
  Put("train/a\nclass/a.jpg", "");
  config_.train_evaluate = false;
  const auto dataset = Open();
  EXPECT_THAT(FillError(*dataset, 0), HasSubstr("/train/a\\x0aclass/a.jpg (sample 0) is empty"));
  EXPECT_THAT(FillError(*dataset, 3), HasSubstr("/cat/\xc3\xa9\\x0a\\xff.jpg (sample 3) is empty"));
  EXPECT_THAT(dataset->NameOf(3), HasSubstr("/cat/\xc3\xa9\\x0a\\xff.jpg"));
  config_.train_evaluate = true;
  EXPECT_THAT(OpenError(), HasSubstr("train: a\\x0aclass"));
}

// A restart helps where the system failed, and does not where the file is bad.
TEST_F(ImageFolderTest, WhatTheSystemFailsAtIsNoFaultOfTheFile) {
  PutSet();
  const auto dataset = Open();
  std::vector<float> inputs(static_cast<size_t>(ElementsOf(*dataset)));
  int64_t target = 0;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status failed = dataset->Fill(0, 0, inputs.data(), &target);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal) << failed;
  EXPECT_THAT(std::string(failed.message()),
              AllOf(HasSubstr("(sample 0) cannot be opened: Too many open files"),
                    Not(HasSubstr("remove it"))));
  std::filesystem::remove_all(config_.data_dir + "/train");
  const absl::Status missing = dataset->Fill(0, 0, inputs.data(), &target);
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument) << missing;
}

TEST_F(ImageFolderTest, CheckFindsABadHeaderAmongMany) {
  PutSet();
  for (int i = 0; i < 50; ++i)
    Put(absl::StrCat("train/cat/", i, ".jpg"), PictureBytes("rgb_420.jpg"));
  EXPECT_TRUE(Open()->Check(60).ok());
  // A header longer than what Check reads first is read wholly, and is no error.
  std::string commented = PictureBytes("rgb_420.jpg");
  for (int i = 0; i < 2; ++i) {
    commented.insert(2, absl::StrCat(std::string("\xff\xfe\xff\xf0", 4), std::string(0xffee, 'c')));
  }
  Put("train/cat/20.jpg", commented);
  EXPECT_TRUE(Open()->Check(60).ok());
  const std::string bad = Put("train/cat/31.jpg", "\xff\xd8\xff");
  EXPECT_THAT(std::string(Open()->Check(60).message()), HasSubstr(bad));
  EXPECT_TRUE(Open()->Check(0).ok());  // no time, nothing found
}

TEST_F(ImageFolderTest, ASampleIsCalledByItsNumberAndFile) {
  PutSet();
  EXPECT_THAT(Open()->NameOf(1), MatchesRegex("sample 1 \\(.*/train/cat/b.JPEG\\)"));
}

}  // namespace
}  // namespace ddprun
