// Whole runs of one rank on data whose samples look different in each epoch: a resume in the middle
// of an epoch, with another number of loader threads, ends with the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/unit/data_files.h"
#include "tests/unit/trainer_harness.h"

namespace ddprun {
namespace {

class DataTrainingTest : public ::testing::Test {
 protected:
  DataTrainingTest() {
    config_.data_dir = folder_.path();
    config_.data_batch_size = 4;
    config_.data_workers = 3;
    config_.train_epochs = 2;
    config_.checkpoint_every_steps = 2;
    config_.checkpoint_async = false;
    config_.log_every_steps = 1000;
  }
  TrainOutcome Run(const std::string& name, int64_t resume_step = -1) {
    const std::string dir = folder_.path() + "/" + name;
    std::filesystem::create_directories(dir);
    return Train({.config = config_, .run_dir = dir, .resume_step = resume_step});
  }
  void ExpectResumesAreExact(const std::vector<int64_t>& steps) {
    const TrainOutcome whole = Run("whole");
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    config_.data_workers = 0;
    for (int64_t step : steps) {
      const std::string checkpoint = absl::StrCat("/checkpoints/step-", step);
      const std::string rest_dir = absl::StrCat("rest-", step);
      std::filesystem::create_directories(
          absl::StrCat(folder_.path(), "/", rest_dir, "/checkpoints"));
      std::filesystem::copy(folder_.path() + "/whole" + checkpoint,
                            absl::StrCat(folder_.path(), "/", rest_dir, checkpoint));
      const TrainOutcome rest = Run(rest_dir, step);
      ASSERT_TRUE(rest.status.ok()) << rest.status;
      for (const char* key : {"WEIGHTS_DIGEST", "FINAL_STEP", "METRIC.test_accuracy"}) {
        EXPECT_EQ(rest.results.at(key), whole.results.at(key)) << step << " " << key;
      }
    }
  }

  DataFolder folder_;
  TrainConfig config_;
};

// TR29, TR31: 15 samples in batches of 4, drop_last off: 4 steps an epoch.
TEST_F(DataTrainingTest, Cifar10WithAugmentationResumesExactly) {
  WriteCifar10(folder_.path(), 3, 4);
  config_.model_name = "resnet18";
  config_.data_kind = "cifar10";
  config_.data_drop_last = false;
  ExpectResumesAreExact({2, 6});
}

TEST_F(DataTrainingTest, MaskedTokensResumeExactly) {
  std::vector<uint32_t> tokens(8 * 20);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i * 7 % 30);
  WriteTokens(folder_.path() + "/train.bin", 2, tokens);
  WriteTokens(folder_.path() + "/test.bin", 2, tokens);
  config_.model_name = "bert";
  config_.model_vocab_size = 32;
  config_.model_sequence_length = 8;
  config_.model_d_model = 16;
  config_.model_heads = 2;
  config_.model_layers = 2;
  config_.data_kind = "tokens";
  config_.data_mask_token = 31;
  ExpectResumesAreExact({2, 8});
}

}  // namespace
}  // namespace ddprun
