// A ResNet trains on a folder of pictures: whole runs of one rank, with random parts and mirroring.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/unit/client_keeper.h"
#include "tests/unit/images_data.h"
#include "tests/unit/trainer_harness.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ImageTrainingTest : public ::testing::Test {
 protected:
  // Two classes of 6 pictures each, batches of 4: 3 steps an epoch.
  ImageTrainingTest() {
    for (const char* name : {"train/large", "train/small", "val/large", "val/small"}) {
      std::filesystem::create_directories(folder_.path() + "/data/" + name);
    }
    for (int i = 0; i < 6; ++i) {
      Put(absl::StrCat("train/large/", i, ".jpg"), i % 2 == 0 ? "large.jpg" : "tall.jpg");
      Put(absl::StrCat("train/small/", i, ".png"), i % 2 == 0 ? "interlaced.png" : "palette.png");
    }
    Put("val/large/0.jpg", "large_progressive.jpg");
    Put("val/small/0.jpg", "cmyk.jpg");
    config_.model_name = "resnet18";
    config_.data_kind = "image_folder";
    config_.data_dir = folder_.path() + "/data";
    config_.data_image_size = 32;
    config_.data_resize = 36;
    config_.data_batch_size = 4;
    config_.data_workers = 2;
    config_.train_epochs = 2;
    config_.checkpoint_every_steps = 4;
    config_.checkpoint_async = false;
  }
  void Put(const std::string& name, const std::string& picture) {
    std::ofstream(PathOf(name), std::ios::binary) << PictureBytes(picture);
  }
  std::string PathOf(const std::string& name) { return folder_.path() + "/data/" + name; }
  TrainOutcome Run(const std::string& name, int64_t resume_step = -1) {
    const std::string dir = folder_.path() + "/" + name;
    std::filesystem::create_directories(dir);
    return Train({.config = config_, .run_dir = dir, .resume_step = resume_step});
  }

  TemporaryFolder folder_;
  TrainConfig config_;
};

// TR26, TR29: in the middle of an epoch too, and with another number of loader threads.
TEST_F(ImageTrainingTest, AResumeSeesTheSamePartsOfThePictures) {
  TrainOutcome whole = Run("whole");
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_EQ(whole.results["FINAL_STEP"], "6");
  std::filesystem::create_directories(folder_.path() + "/rest/checkpoints");
  std::filesystem::copy(folder_.path() + "/whole/checkpoints/step-4",
                        folder_.path() + "/rest/checkpoints/step-4");
  config_.data_workers = 0;
  TrainOutcome rest = Run("rest", 4);
  ASSERT_TRUE(rest.status.ok()) << rest.status;
  EXPECT_EQ(rest.results["WEIGHTS_DIGEST"], whole.results["WEIGHTS_DIGEST"]);
}

TEST_F(ImageTrainingTest, ABrokenPictureEndsTheRunWithItsName) {
  std::ofstream(PathOf("train/large/3.jpg"), std::ios::trunc) << "no picture";
  const TrainOutcome outcome = Run("broken");
  EXPECT_THAT(std::string(outcome.status.message()),
              AllOf(HasSubstr(PathOf("train/large/3.jpg")), HasSubstr("(sample 3)")));
}

// The training is as good as before: its checkpoint is there, and is not called the best.
TEST_F(ImageTrainingTest, AnEvaluationThatFailsLosesNothingOfTheTraining) {
  const std::string whole = PictureBytes("large_progressive.jpg");
  std::ofstream(PathOf("val/large/0.jpg"), std::ios::binary | std::ios::trunc)
      << whole.substr(0, whole.size() / 2);
  for (const bool best : {false, true}) {
    for (const bool async : {false, true}) {
      for (const int64_t epochs : {1, 2}) {  // the last evaluation; one on the way
        const std::string name = absl::StrCat("cut-", best, async, epochs);
        config_.checkpoint_best = best;
        config_.checkpoint_async = async;
        config_.train_epochs = epochs;
        const TrainOutcome outcome = Run(name);
        EXPECT_THAT(std::string(outcome.status.message()), HasSubstr(PathOf("val/large/0.jpg")));
        EXPECT_EQ(outcome.committed, (std::vector<int64_t>{3})) << name;
        const std::string dir = folder_.path() + "/" + name + "/checkpoints/step-3";
        EXPECT_FALSE(std::filesystem::exists(dir + "/best.json")) << name;
      }
    }
  }
  // With the picture back, the checkpoint only has to be evaluated.
  Put("val/large/0.jpg", "large_progressive.jpg");
  config_.train_epochs = 1;
  TrainOutcome rest = Run("cut-111", 3);
  EXPECT_TRUE(rest.status.ok()) << rest.status;
  EXPECT_EQ(rest.results["FINAL_STEP"], "3");
  EXPECT_EQ(rest.results.count("METRIC.test_accuracy"), 1U);
}

}  // namespace
}  // namespace ddprun
