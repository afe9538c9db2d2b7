// train.cfg and the command line together: what --set replaces, and what it passes over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/config/train_config.h"
#include "tests/unit/config_text.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;

TEST(TrainConfigTest, OverridesAreTomlAndBareWordsAreStrings) {
  const auto config = ParseTrainConfig(
      kGood, "train.cfg",
      {"train.lr=1", "train.optimizer=sgd", "data.shuffle=false", "data.dir=some dir/x",
       "train.steps=7", "train.seed = 5", "model.name=\"simple_cnn\""});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->train_lr, 1.0);
  EXPECT_EQ(config->train_optimizer, "sgd");
  EXPECT_FALSE(config->data_shuffle);
  EXPECT_THAT(config->data_dir, HasSubstr("/some dir/x"));
  EXPECT_EQ(config->data_dir[0], '/');
  EXPECT_EQ(config->train_steps, 7);
  EXPECT_EQ(config->train_epochs, 0) << "--set train.steps replaces the file's epochs";
  EXPECT_EQ(config->train_seed, 5);
}

// The same file on another model, on other data, without evaluation: what it says for its own is
// passed over, and not kept for a resume either.
TEST(TrainConfigTest, WhatTheCommandLineChoosesPassesOverTheFilesKeys) {
  const std::string text = absl::StrReplaceAll(
      kGood,
      {{"\"simple_cnn\"", "\"gpt\"\nlayers = 3"}, {"epochs", "evaluate_every_steps = 5\nepochs"}});
  const std::vector<std::string> overrides = {"model.name=resnet18", "data.kind=synthetic",
                                              "train.evaluate=false"};
  const auto config = ParseTrainConfig(text, "train.cfg", overrides);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_layers, 0);
  EXPECT_EQ(config->data_dir, "");
  EXPECT_EQ(config->train_evaluate_every_steps, 0);
  EXPECT_EQ(ErrorOf(text, {"model.name=resnet18", "data.kind=synthetic", "model.layers=3"}),
            "--set model.layers=3: has no meaning with [model] name = \"resnet18\"; only with "
            "\"bert\" or \"gpt\"; leave it away");
}

TEST(TrainConfigTest, AnotherOptimizerOrScheduleOnTheCommandLineHasItsOwnKeys) {
  const std::string text = absl::StrCat(kGood, R"(optimizer = "sgd"
momentum = 0.9
nesterov = true
schedule = "step"
gamma = 0.5
)");
  const auto config =
      ParseTrainConfig(text, "train.cfg", {"train.optimizer=adamw", "train.schedule=cosine"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->train_momentum, 0);
  EXPECT_FALSE(config->train_nesterov);
  EXPECT_EQ(config->train_gamma, TrainConfig{}.train_gamma);
  EXPECT_THAT(ErrorOf(text, {"train.optimizer=adamw", "train.momentum=0.5"}),
              HasSubstr("--set train.momentum=0.5: has no meaning with"));
}

TEST(TrainConfigTest, WithoutEvaluationsOnTheCommandLineNothingOfTheFileNeedsThem) {
  const std::string text =
      absl::StrCat(kGood, "early_stop = 3\nevaluate_every_steps = 5\n[checkpoint]\nbest = true\n");
  const auto config = ParseTrainConfig(text, "train.cfg", {"train.evaluate=false"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->train_early_stop, 0);
  EXPECT_FALSE(config->checkpoint_best);
  EXPECT_THAT(ErrorOf(text, {"train.evaluate=false", "checkpoint.best=true"}),
              HasSubstr("--set checkpoint.best=true: needs [train] evaluate = true"));
}

TEST(TrainConfigTest, AnErrorThatIsFoundLaterHasTheKeysPlace) {
  KeyPlaces places;
  ASSERT_TRUE(ParseTrainConfig(kGood, "train.cfg", {"model.classes=7"}, &places).ok());
  EXPECT_EQ(WithPlace("[data] dir: is empty", places), "train.cfg:5: [data] dir: is empty");
  EXPECT_EQ(WithPlace("[model] classes: is 7", places), "--set model.classes=7: is 7");
  EXPECT_EQ(WithPlace("[model] heads: is 12", places), "train.cfg: [model] heads: is 12");
  EXPECT_EQ(WithPlace("/data: no [model] heads: there", places), "/data: no [model] heads: there");
  EXPECT_EQ(WithPlace("", places), "");
}

}  // namespace
}  // namespace ddprun
