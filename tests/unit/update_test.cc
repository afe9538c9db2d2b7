// The update side against PyTorch: numbers that make_update_vectors.py wrote, stored and live.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/unit/update_net.h"
#include "worker/trainer/clip.h"

namespace ddprun {
namespace {

using ::testing::ElementsAreArray;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr RunLength kLength = {.total_steps = 40, .steps_per_epoch = 8, .world_size = 4};
const float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  std::string kind;
  std::string keys;
  std::vector<float> numbers;
};

TrainConfig Config(const std::string& keys) {
  std::vector<std::string> overrides = absl::StrSplit(keys, ' ', absl::SkipEmpty());
  auto config = ParseTrainConfig(
      "[model]\nname = \"simple_cnn\"\n[data]\nkind = \"idx\"\ndir = \"d\"\n[train]\nepochs = 5\n",
      "test.cfg", overrides);
  if (!config.ok()) throw std::runtime_error(config.status().ToString());
  return *config;
}

std::vector<Case> ReadCases(std::istream& stream) {
  std::vector<Case> cases;
  for (std::string line; std::getline(stream, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> parts = absl::StrSplit(line, '|');
    Case one = {parts.at(0), parts.at(1), {}};
    for (absl::string_view number : absl::StrSplit(parts.at(2), ' ')) {
      one.numbers.push_back(std::strtof(std::string(number).c_str(), nullptr));
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

// A few roundings of float32 (6e-8 each) over five steps.
auto Near(const std::vector<float>& expected) {
  return Pointwise(FloatNear(2e-6F), expected);
}

void CheckOptimizer(const Case& one) {
  UpdateNet net(Config(one.keys), nullptr);
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(net.Step(step, UpdateNet::Gradients(step)).ok());
  }
  EXPECT_THAT(net.Values(), Near(one.numbers)) << one.keys;
}

// The same weights in a layout that the fused kernels do not take: every second column of a larger
// matrix.
void CheckForeach(const Case& one) {
  const at::Tensor matrix = at::zeros({3, 8}).slice(1, 0, 8, 2);
  matrix.copy_(Numbers(std::sin, 1, {3, 4}));
  const at::Tensor bias = at::zeros({8}).slice(0, 0, 8, 2);
  bias.copy_(Numbers(std::sin, 13, {4}));
  UpdateNet net(Config(one.keys), {matrix, bias});
  ASSERT_FALSE(net.parameter(0).is_non_overlapping_and_dense());
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(net.Step(step, UpdateNet::Gradients(step)).ok());
  }
  EXPECT_THAT(net.Values(), Near(one.numbers)) << one.keys;
}

void CheckSchedule(const Case& one) {
  const auto schedule = LearningRateSchedule::Create(Config(one.keys), kLength);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  std::vector<float> rates;
  for (int64_t step = 0; step < kLength.total_steps; ++step) {
    rates.push_back(static_cast<float>(schedule->At(step)));
  }
  EXPECT_THAT(rates, Pointwise(FloatNear(1e-7F), one.numbers)) << one.keys;
}

void CheckClip(const Case& one) {
  UpdateNet net(Config(one.keys), nullptr);
  net.reducer->SetFlag(1000);  // travels with the gradients and is none
  ASSERT_TRUE(net.Step(0, UpdateNet::Gradients(0)).ok());
  EXPECT_EQ(net.reducer->control().flag, 1000);
  std::vector<float> got = {static_cast<float>(net.update->Outcome().grad_norm.value())};
  for (size_t i : {0, 1}) {
    for (float value : UpdateNet::Flat({{"", net.parameter(i).grad()}})) got.push_back(value);
  }
  EXPECT_THAT(got, Near(one.numbers)) << one.keys;
}

void CheckScaler(const Case& one) {
  UpdateNet net(Config(one.keys), nullptr);
  std::vector<float> got;
  for (int step = 0; step < 14; ++step) {
    auto gradients = UpdateNet::Gradients(step);
    const bool overflows = step == 2 || step == 3 || step == 9;
    if (overflows) gradients[1][2] = kInfinity;
    ASSERT_TRUE(net.Step(step, gradients).ok());
    const UpdateOutcome outcome = net.update->Outcome();
    EXPECT_EQ(outcome.skipped, overflows) << step;
    got.push_back(static_cast<float>(outcome.loss_scale.value()));
  }
  for (float value : net.Values()) got.push_back(value);
  EXPECT_THAT(got, Near(one.numbers)) << one.keys;
}

std::map<std::string, int> CheckAll(std::istream& stream) {
  std::map<std::string, int> counts;
  for (const Case& one : ReadCases(stream)) {
    ++counts[one.kind];
    if (one.kind == "optimizer") CheckOptimizer(one);
    if (one.kind == "optimizer") CheckForeach(one);
    if (one.kind == "schedule") CheckSchedule(one);
    if (one.kind == "clip") CheckClip(one);
    if (one.kind == "scaler") CheckScaler(one);
  }
  return counts;
}

const std::map<std::string, int> kCounts = {
    {"clip", 3}, {"optimizer", 12}, {"scaler", 1}, {"schedule", 7}};

std::string SourceFile(const std::string& name) {
  const char* source = std::getenv("DDPRUN_SOURCE");
  return absl::StrCat(source == nullptr ? "." : source, "/tests/unit/", name);
}

TEST(ParameterUpdate, EqualsTheStoredNumbersOfPyTorch) {
  std::ifstream stored(SourceFile("update_vectors.txt"));
  ASSERT_TRUE(stored.is_open());
  EXPECT_EQ(CheckAll(stored), kCounts);
}

TEST(ParameterUpdate, EqualsPyTorchLive) {
  const char* python = std::getenv("DDPRUN_PYTHON");
  if (python == nullptr || *python == '\0') GTEST_SKIP() << "DDPRUN_PYTHON names no Python";
  if (std::system(absl::StrCat(python, " -c 'import torch' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << python << " cannot import torch";
  }
  const std::string made = absl::StrCat(testing::TempDir(), "/update_vectors.", getpid());
  ASSERT_EQ(std::system(absl::StrCat(python, " -W ignore ", SourceFile("make_update_vectors.py"),
                                     " > ", made)
                            .c_str()),
            0);
  std::ifstream stream(made);
  EXPECT_EQ(CheckAll(stream), kCounts);
  std::remove(made.c_str());
}

// TR4: neither decay nor momentum moves what no rank used.
TEST(ParameterUpdate, AParameterWithoutGradientIsLeftAlone) {
  for (const char* keys : {"train.optimizer=sgd train.momentum=0.9 train.weight_decay=0.1",
                           "train.optimizer=adamw train.weight_decay=0.1 train.clip_norm=0.1",
                           "train.optimizer=adam train.weight_decay=0.1 precision.amp=fp16"}) {
    UpdateNet net(Config(keys), nullptr);
    ASSERT_TRUE(net.Step(0, UpdateNet::Gradients(0)).ok());
    const auto state = UpdateNet::Flat(net.update->State());
    const at::Tensor before = net.parameter(1).detach().clone();
    const at::Tensor matrix = net.parameter(0).detach().clone();
    ASSERT_TRUE(net.Step(1, {UpdateNet::Gradients(1)[0], at::Tensor()}).ok());
    EXPECT_TRUE(at::equal(net.parameter(1).detach(), before)) << keys;
    EXPECT_FALSE(at::equal(net.parameter(0).detach(), matrix)) << keys;
    for (const NamedTensor& item : net.update->State()) {
      if (!item.name.starts_with("step.")) continue;
      EXPECT_EQ(item.tensor.item<float>(), item.name == "step.bias" ? 1 : 2) << item.name;
    }
    EXPECT_NE(UpdateNet::Flat(net.update->State()), state);
  }
}

// On a GPU nobody waits to know whether an update is left out; the kernels then get `found_inf`.
TEST(Optimizer, WithFoundInfNothingChangesAndNothingIsCounted) {
  for (const char* name : {"sgd", "adam", "adamw"}) {
    TrainConfig config = Config(absl::StrCat("train.weight_decay=0.1 train.optimizer=", name));
    if (config.train_optimizer == "sgd") config.train_momentum = 0.9;
    at::Tensor dense = at::randn({4, 3});
    at::Tensor strided = at::randn({4, 6}).slice(1, 0, 6, 2);
    std::vector<NamedTensor> parameters = {{"dense", dense}, {"strided", strided}};
    auto optimizer = CreateOptimizer(config, parameters);
    ASSERT_TRUE(optimizer.ok());
    for (NamedTensor& item : parameters) item.tensor.mutable_grad() = at::randn_like(item.tensor);
    (*optimizer)->Step(0.1, at::zeros({}));
    const auto weights = UpdateNet::Flat(parameters);
    const auto state = UpdateNet::Flat((*optimizer)->State());
    (*optimizer)->Step(0.1, at::ones({}));
    EXPECT_EQ(UpdateNet::Flat(parameters), weights) << name;
    EXPECT_EQ(UpdateNet::Flat((*optimizer)->State()), state) << name;
    (*optimizer)->Step(0.1, at::zeros({}));
    EXPECT_NE(UpdateNet::Flat(parameters), weights) << name;
  }
}

TEST(ParameterUpdate, ALossScaleThatNothingHelpsIsAnErrorWithAdvice) {
  UpdateNet net(Config("precision.amp=fp16"), nullptr);
  auto gradients = UpdateNet::Gradients(0);
  gradients[0][0][0] = kInfinity;
  const auto before = net.Values();
  absl::Status status;
  int steps = 0;
  for (; status.ok() && steps < 100; ++steps) status = net.Step(steps, gradients);
  EXPECT_EQ(steps, 43) << "65536 halved 43 times is less than 1e-8";
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("amp = \"bf16\""));
  EXPECT_EQ(net.Values(), before);
}

TEST(ParameterUpdate, TheAverageFollowsTheWeightsAndStandsStillInSkippedUpdates) {
  UpdateNet net(Config("train.ema_decay=0.75 precision.amp=fp16 train.lr=0.1"), nullptr);
  net.update->BeginRun();
  std::vector<float> expected = net.Values();
  for (int step = 0; step < 4; ++step) {
    auto gradients = UpdateNet::Gradients(step);
    if (step == 2) gradients[0][1][1] = kInfinity;
    ASSERT_TRUE(net.Step(step, gradients).ok());
    if (step == 2) continue;
    const auto weights = net.Values();
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = 0.75F * expected[i] + 0.25F * weights[i];
    }
  }
  EXPECT_THAT(UpdateNet::Flat(net.update->AveragedWeights()), Near(expected));
}

TEST(WeightAverage, WithFoundInfItStaysAsItIs) {
  const std::vector<NamedTensor> weights = {{"w", at::randn({5, 3})}};
  WeightAverage average(0.5, weights);
  at::Tensor weight = weights[0].tensor;
  const at::Tensor before = weight.clone();
  weight.add_(1);
  average.Update(at::ones({}));
  EXPECT_TRUE(at::equal(average.Tensors()[0].tensor, before));
  average.Update(at::zeros({}));
  EXPECT_TRUE(at::allclose(average.Tensors()[0].tensor, before + 0.5));
}

// A norm in float32 over many elements must not lose the small ones.
TEST(Clip, TheNormOfMillionsOfElementsIsExactToFiveDigits) {
  const at::Tensor large = at::full({4'000'000}, 0.01F);
  EXPECT_NEAR(GlobalNorm({large, large}).item<double>(), 0.01 * std::sqrt(8e6), 3e-4);
}

TEST(Schedule, WarmupThatScalingBringsIsFiveEpochsButATenthOfTheRunAtMost) {
  const TrainConfig config = Config("train.scale_lr=linear train.lr=0.1");
  const auto warmup = [&](int64_t total, int64_t per_epoch) {
    return LearningRateSchedule::Create(
               config, {.total_steps = total, .steps_per_epoch = per_epoch, .world_size = 8})
        ->warmup_steps();
  };
  EXPECT_EQ(warmup(10000, 100), 500);
  EXPECT_EQ(warmup(1000, 100), 100);
  EXPECT_EQ(warmup(9, 3), 0);
  EXPECT_EQ(LearningRateSchedule::Create(Config(""), kLength)->warmup_steps(), 0);
}

TEST(Schedule, WarmupLongerThanTheRunNamesTheKey) {
  const auto schedule = LearningRateSchedule::Create(Config("train.warmup_steps=41"), kLength);
  EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(schedule.status().message(),
            "[train] warmup_steps: is 41, longer than the whole run of 40 steps (5 epochs of 8 "
            "with 4 ranks); make it smaller, or the run longer");
}

TEST(Schedule, AfterTheEndTheRateIsThatOfTheEnd) {
  for (const char* keys :
       {"train.schedule=cosine train.min_lr=0.0005", "train.schedule=linear train.min_lr=0.0005"}) {
    const auto schedule = LearningRateSchedule::Create(Config(keys), kLength);
    EXPECT_DOUBLE_EQ(schedule->At(40), 0.0005);
    EXPECT_DOUBLE_EQ(schedule->At(1000), 0.0005);
  }
}

// 8 updates an epoch of 2 × 4 samples a rank on 4 ranks; after a change from other numbers of ranks
// the updates done say nothing about the place in the run.
TEST(Schedule, ThePlaceInARunOfEpochsFollowsTheSamplesUsed) {
  TrainConfig config = Config("data.batch_size=4 train.accumulation_steps=2");
  EXPECT_EQ(SchedulePosition(config, kLength, 19, 2, 96), 19) << "never changed: the updates done";
  EXPECT_EQ(SchedulePosition(config, kLength, 40, 2, 96), 19);
  EXPECT_EQ(SchedulePosition(config, kLength, 40, 2, 100000), 23) << "inside its epoch";
  config.train_epochs = 0;
  config.train_steps = 100;
  EXPECT_EQ(SchedulePosition(config, kLength, 40, 2, 96), 40);
}

}  // namespace
}  // namespace ddprun
