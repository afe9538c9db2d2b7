// train.cfg: what is read, and the text of every error (issue 3, "Bad input").
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/config/combinations.h"
#include "common/config/data_checks.h"
#include "common/config/train_config.h"
#include "tests/unit/config_text.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;

TEST(TrainConfigTest, DefaultsAreThoseOfTheDocuments) {
  const auto config = ParseTrainConfig(kGood, "train.cfg", {});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->data_batch_size, 64);
  EXPECT_TRUE(config->data_shuffle);
  EXPECT_TRUE(config->data_drop_last);
  EXPECT_EQ(config->data_workers, 4);
  EXPECT_EQ(config->train_epochs, 2);
  EXPECT_EQ(config->train_steps, 0);
  EXPECT_EQ(config->train_optimizer, "adam");
  EXPECT_EQ(config->train_lr, 0.001);
  EXPECT_EQ(config->train_seed, 1024);
  EXPECT_EQ(config->parallel_bucket_mb, 25);
  EXPECT_EQ(config->checkpoint_every_steps, 100);
  EXPECT_EQ(config->checkpoint_keep, 3);
  EXPECT_EQ(config->log_every_steps, 100);
}

struct ErrorCase {
  std::string add;                     // appended to the good file, line 8 and later
  std::vector<std::string> overrides;  //
  std::string expected;                // the beginning of the message
};

// What a single key is and holds.
std::vector<ErrorCase> KeyErrors() {
  return {
      {"lerning_rate = 1",
       {},
       R"(train.cfg:8: [train] lerning_rate: unknown key; did you mean "lr"?)"},
      {"epoch = 1", {}, R"(train.cfg:8: [train] epoch: unknown key; did you mean "epochs"?)"},
      {"batch_size = 1",
       {},
       R"(train.cfg:8: [train] batch_size: unknown key; did you mean "batch_size" of [data]?)"},
      {"xyzzyxyzzy = 1", {}, "train.cfg:8: [train] xyzzyxyzzy: unknown key"},
      {"[trian]\nlr = 1", {}, "train.cfg:8: [trian]: unknown section; did you mean [train]?"},
      {"lr = \"fast\"",
       {},
       R"(train.cfg:8: [train] lr: expected a number, found the string "fast")"},
      {"evaluate = 1",
       {},
       "train.cfg:8: [train] evaluate: expected true or false, found the integer 1"},
      {"seed = 1.5", {}, "train.cfg:8: [train] seed: expected an integer, found the number 1.5"},
      {"seed = 2020-01-01",
       {},
       "train.cfg:8: [train] seed: expected an integer, found a date or time"},
      {"optimizer = {a = 1}",
       {},
       "train.cfg:8: [train] optimizer: expected a string, found a table"},
      {"betas = [0.9]",
       {},
       "train.cfg:8: [train] betas: expected an array of two numbers, found an array of 1"},
      {"lr = 0", {}, "train.cfg:8: [train] lr: 0 is out of range; must be greater than 0"},
      {"lr = nan", {}, "train.cfg:8: [train] lr: nan is out of range"},
      {"seed = -1", {}, "train.cfg:8: [train] seed: -1 is out of range; must be at least 0"},
      {"seed = 4294967296", {}, "train.cfg:8: [train] seed: 4294967296 is out of range"},
      {"lr = 1\nlr = 2", {}, "train.cfg:9: not valid TOML: "},
      {"lr = ", {}, "train.cfg:8: not valid TOML: "},
      {"optimizer = \"adamm\"",
       {},
       R"(train.cfg:8: [train] optimizer: "adamm" is not a known value; supported: "adam", "adamw", "sgd")"},
  };
}

// What goes with what, in the file.
std::vector<ErrorCase> RuleErrors() {
  return {
      {"nesterov = true\noptimizer = \"sgd\"",
       {},
       "train.cfg:8: [train] nesterov: needs [train] momentum greater than 0"},
      {"early_stop = 3\nevaluate = false",
       {},
       "train.cfg:8: [train] early_stop: needs [train] evaluate = true"},
      {"min_lr = 1\nschedule = \"cosine\"",
       {},
       "train.cfg:8: [train] min_lr: is greater than [train] lr"},
      {"gamma = 0.5",
       {},
       R"(train.cfg:8: [train] gamma: has no meaning with [train] schedule = "constant"; only with "step")"},
      {"warmup_steps = 5",
       {"train.steps=4"},
       "train.cfg:8: [train] warmup_steps: is 5, longer than the whole run of 4 steps"},
      {"[parallel]\npipeline_stages = 2",
       {},
       "train.cfg:9: [parallel] pipeline_stages: 2 is not possible in this version yet; supported: "
       "up to 1"},
      {"[precision]\nloss_scale = 1024",
       {},
       R"(train.cfg:9: [precision] loss_scale: has no meaning with [precision] amp = "off"; only with "fp16")"},
      {"steps = 3",
       {},
       "train.cfg:8: [train] steps: epochs is given too; give one of epochs and steps"},
      {"momentum = 0.9",
       {},
       R"(train.cfg:8: [train] momentum: has no meaning with [train] optimizer = "adam"; only with "sgd")"},
      {"optimizer = \"sgd\"\neps = 0.1",
       {},
       R"(train.cfg:9: [train] eps: has no meaning with [train] optimizer = "sgd")"},
  };
}

std::vector<ErrorCase> CommandLineErrors() {
  return {
      {"",
       {"data.normalize=imagenet"},
       R"(--set data.normalize=imagenet: "imagenet" is for images of three colours, idx has grey ones)"},
      {"",
       {"model.weights_except=fc."},
       "--set model.weights_except=fc.: has no meaning without [model] weights"},
      {"",
       {"data.augment=standard"},
       R"(--set data.augment=standard: "standard" is for cifar10 and image_folder, not for [data] kind = "idx")"},
      {"",
       {"data.kind=tokens", "data.normalize=none"},
       R"(--set data.normalize=none: has no meaning with [data] kind = "tokens")"},
      {"",
       {"data.kind=tokens", "model.name=gpt", "data.mask_token=7"},
       "--set data.mask_token=7: has no meaning without the masked task"},
      {"",
       {"data.task=masked"},
       R"(--set data.task=masked: has no meaning with [data] kind = "idx"; only with "tokens" or "synthetic")"},
      {"", {"train.lr=abc"}, R"(--set train.lr=abc: expected a number, found the string "abc")"},
      {"",
       {"train.lrr=1"},
       R"(--set train.lrr=1: unknown key "lrr" of [train]; did you mean "lr"?)"},
      {"", {"tain.lr=1"}, "--set tain.lr=1: unknown section [tain]; did you mean [train]?"},
      {"", {"lr=1"}, "--set lr=1: expected section.key=value, for example train.lr=0.01"},
      {"", {"train.lr="}, "--set train.lr=: there is no value after the equals sign"},
      {"", {"train.lr=1\n[model]\nname=2"}, "--set train.lr=1"},
      {"",
       {"model.name=resnet99"},
       R"(--set model.name=resnet99: "resnet99" is not a known value; supported: )"},
      {"", {"train.epochs=1", "train.steps=1"}, "--set train.steps=1: epochs is given too"},
  };
}

TEST(TrainConfigTest, EachErrorNamesFileLineAndKeyAndTheWayOut) {
  for (const auto& cases : {KeyErrors(), RuleErrors(), CommandLineErrors()}) {
    for (const ErrorCase& c : cases) {
      const std::string message = ErrorOf(kGood + c.add, c.overrides);
      EXPECT_EQ(message.substr(0, c.expected.size()), c.expected);
    }
  }
}

// A key that the model or the data would ignore, in the file and on the command line.
TEST(TrainConfigTest, AKeyThatNothingReadsIsAnErrorThatSaysWhatWould) {
  struct Case {
    std::string model, data, key, value, reads;
  };
  const Case cases[] = {
      {"simple_cnn", "idx", "model.stem", "\"cifar\"", R"("resnet18" or "resnet50")"},
      {"gpt", "tokens", "model.stem", "\"cifar\"", R"("resnet18" or "resnet50")"},
      {"gpt", "tokens", "model.classes", "10", R"("simple_cnn" or "resnet18" or)"},
      {"bert", "tokens", "model.classes", "10", R"("simple_cnn" or "resnet18" or)"},
      {"resnet18", "idx", "model.d_model", "64", R"("bert" or "gpt")"},
      {"resnet18", "idx", "model.heads", "4", R"("bert" or "gpt")"},
      {"resnet50", "idx", "model.layers", "4", R"("bert" or "gpt")"},
      {"resnet50", "idx", "model.d_ff", "64", R"("bert" or "gpt")"},
      {"torchscript", "idx", "model.dropout", "0.1", R"("bert" or "gpt")"},
      {"simple_cnn", "idx", "model.vocab_size", "64", R"("bert" or "gpt" or "torchscript")"},
      {"resnet18", "idx", "model.sequence_length", "64", R"("bert" or "gpt" or "torchscript")"},
      {"gpt", "synthetic", "data.dir", "\"x\"", R"("idx" or "cifar10" or "image_folder" or)"},
  };
  for (const Case& c : cases) {
    const bool of_model = c.key.starts_with("model.");
    const std::string name = c.key.substr(c.key.find('.') + 1);
    const std::string line = absl::StrCat(name, " = ", c.value, "\n");
    std::string text = absl::StrCat("[model]\nname = \"", c.model, "\"\n");
    if (of_model) text += line;
    absl::StrAppend(&text, "[data]\nkind = \"", c.data, "\"\n");
    if (!of_model) text += line;
    if (c.data != "synthetic") text += "dir = \"x\"\n";
    text += "[train]\nsteps = 2\n";
    const std::string expected = absl::StrCat(
        of_model ? "train.cfg:3: [model] " : "train.cfg:5: [data] ", name, ": has no meaning with ",
        of_model ? "[model] name = \"" + c.model : "[data] kind = \"" + c.data, "\"; only with ",
        c.reads);
    EXPECT_EQ(ErrorOf(text).substr(0, expected.size()), expected);
    const std::string without = absl::StrReplaceAll(text, {{line, ""}});
    EXPECT_EQ(ErrorOf(c.model == "torchscript"
                          ? absl::StrReplaceAll(without, {{"[data]", "file = \"x\"\n[data]"}})
                          : without),
              "no error");
    const std::string setting = absl::StrCat(c.key, "=", c.value);
    EXPECT_THAT(ErrorOf(without, {setting}),
                HasSubstr(absl::StrCat("--set ", setting, ": has no meaning with")));
  }
}

TEST(TrainConfigTest, AnEvaluationThatNeverComesHasNoInterval) {
  const std::string text = absl::StrCat(kGood, "evaluate_every_steps = 5\n");
  EXPECT_EQ(ErrorOf(text), "no error");
  EXPECT_EQ(ErrorOf(text + "evaluate = false\n"),
            "train.cfg:8: [train] evaluate_every_steps: has no meaning with [train] evaluate = "
            "false; leave it away, or set evaluate = true");
  EXPECT_EQ(ErrorOf(absl::StrCat(kGood, "evaluate_every_steps = 0\nevaluate = false\n")),
            "no error")
      << "the default";
}

TEST(TrainConfigTest, BlocksOfAModuleOfOneBlockSaveNothing) {
  const std::vector<std::string> module = {"model.name=torchscript", "model.file=x"};
  const auto with = [&](const std::string& recompute) {
    std::vector<std::string> overrides = module;
    overrides.push_back("precision.recompute=" + recompute);
    return ErrorOf(kGood, overrides);
  };
  EXPECT_EQ(with("none"), "no error");
  EXPECT_THAT(with("blocks"),
              HasSubstr("--set precision.recompute=blocks: \"blocks\" has no effect on model "
                        "torchscript"));
}

// A model that a user has added reads what it likes.
TEST(TrainConfigTest, AModelOfYourOwnMayReadAnyKeyOfModel) {
  TrainConfig config;
  config.model_name = "mlp";
  config.model_layers = 3;
  config.model_stem = "cifar";
  GivenKeys keys;
  for (const char* name : {"layers", "stem", "file"}) keys[FindKey("model", name)] = {"x", false};
  EXPECT_TRUE(CheckCombinations("train.cfg", &config, &keys).ok());
  EXPECT_EQ(config.model_layers, 3);
  config.model_name = "simple_cnn";
  EXPECT_FALSE(CheckCombinations("train.cfg", &config, &keys).ok());
}

TEST(TrainConfigTest, RequiredKeysAreNamedWithAnExample) {
  const auto without = [](const std::string& line) {
    return absl::StrReplaceAll(kGood, {{line, ""}});
  };
  EXPECT_THAT(ErrorOf(without("name = \"simple_cnn\"\n")),
              HasSubstr("train.cfg: [model] name: missing"));
  EXPECT_THAT(ErrorOf(without("kind = \"idx\"\n")), HasSubstr("train.cfg: [data] kind: missing"));
  EXPECT_THAT(ErrorOf(without("dir = \"/data\"\n")), HasSubstr("train.cfg: [data] dir: missing"));
  EXPECT_THAT(ErrorOf(without("epochs = 2\n")), HasSubstr("train.cfg: [train] epochs: missing"));
  EXPECT_THAT(
      ErrorOf(std::string("lr = 1\n") + kGood),
      HasSubstr("train.cfg:1: lr: stands outside of a section; did you mean \"lr\" of [train]?"));
}

TEST(TrainConfigTest, AFileThatCannotBeReadIsNamed) {
  EXPECT_THAT(LoadTrainConfig("/nowhere/train.cfg", {}).status().message(),
              HasSubstr("/nowhere/train.cfg"));
  EXPECT_THAT(LoadTrainConfig("/tmp", {}).status().message(), HasSubstr("not a regular file"));
}

TEST(TrainConfigTest, TheReferenceJobIsValid) {
  const char* source = std::getenv("DDPRUN_SOURCE");
  if (source == nullptr) GTEST_SKIP() << "DDPRUN_SOURCE is not set";
  const auto config = LoadTrainConfig(absl::StrCat(source, "/examples/fashion_mnist.cfg"), {});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->train_epochs, 2);
}

TEST(TrainConfigTest, JsonKeepsEveryValue) {
  const auto config = ParseTrainConfig(
      kGood, "train.cfg",
      {"train.lr=0.30000000000000004", "train.betas=[0.8, 0.95]", "data.shuffle=false",
       "checkpoint.keep=9", "train.steps=12", "parallel.bucket_mb=0.5"});
  ASSERT_TRUE(config.ok()) << config.status();
  const auto copy = FromJson(ToJson(*config));
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(*copy, *config);
  EXPECT_THAT(FromJson("{\"train\":{\"lr\":\"x\"}}").status().message(),
              HasSubstr("[train] lr: expected a number"));
  EXPECT_THAT(FromJson("{\"train\":{\"new\":1}}").status().message(),
              HasSubstr("different versions"));
  EXPECT_FALSE(FromJson("[1").ok());
}

// DESIGN 4.1: --resume needs the same model, data and layout; the length, checkpoints and logs may
// differ.
TEST(TrainConfigTest, AResumeMayChangeOnlyLengthCheckpointsAndLogs) {
  const auto with = [](const std::vector<std::string>& overrides) {
    return *ParseTrainConfig(kGood, "train.cfg", overrides);
  };
  const TrainConfig base = with({});
  EXPECT_TRUE(CompareForResume(
                  base, with({"train.epochs=9", "checkpoint.every_steps=5", "checkpoint.keep=1",
                              "checkpoint.async=false", "log.every_steps=3", "data.workers=0"}))
                  .ok());
  EXPECT_TRUE(CompareForResume(base, with({"train.steps=9"})).ok());
  for (const char* change :
       {"train.lr=0.5", "train.optimizer=adamw", "data.batch_size=32", "data.dir=/other",
        "train.seed=1", "parallel.bucket_mb=1", "data.shuffle=false"}) {
    const absl::Status status = CompareForResume(base, with({change}));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << change;
  }
  EXPECT_THAT(CompareForResume(base, with({"train.lr=0.5"})).message(),
              HasSubstr("[train] lr: is 0.5, but the run that is to be resumed has 0.001"));
}

TEST(TrainConfigTest, AWarmUpIsNotLongerThanTheRun) {
  TrainConfig config;
  config.train_epochs = 2;
  config.data_batch_size = 10;
  config.train_warmup_steps = 20;
  EXPECT_TRUE(CheckSampleCount(config, "data", 200, 2).ok()) << "2 epochs of 10 updates";
  config.train_warmup_steps = 21;
  EXPECT_THAT(std::string(CheckSampleCount(config, "data", 200, 2).message()),
              HasSubstr("[train] warmup_steps: is 21, longer than the whole run of 20 steps"));
}

TEST(TrainConfigTest, StepsPerEpochFollowTheSampler) {
  TrainConfig config;
  EXPECT_EQ(StepsPerEpoch(config, 60000, 4), 234);
  EXPECT_EQ(StepsPerEpoch(config, 60000, 1), 937);
  config.data_drop_last = false;
  EXPECT_EQ(StepsPerEpoch(config, 60000, 4), 235);
  config.data_batch_size = 1;
  EXPECT_EQ(StepsPerEpoch(config, 101, 2), 51);  // TR1: N = 101, R = 2: equal steps on both ranks
  config.train_accumulation_steps = 10;
  EXPECT_EQ(StepsPerEpoch(config, 101, 2), 6);  // TR8: the tail is an update too
}

}  // namespace
}  // namespace ddprun
