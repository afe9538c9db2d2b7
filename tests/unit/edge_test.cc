// The step edge of the trainer, in one process: evaluation, the best checkpoint, the early end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/client_keeper.h"
#include "tests/unit/trainer_harness.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/trainer/best.h"
#include "worker/trainer/evaluate.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

std::vector<std::string> Lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Best, OnlyAStrictlyBetterFiniteValueIsAnImprovement) {
  TrainState state;
  state.step = 10;
  EXPECT_FALSE(NoteEvaluation(BestMetric::kLoss, std::nan(""), &state)) << "also as the first one";
  EXPECT_EQ(state.best_step, 0);
  EXPECT_TRUE(NoteEvaluation(BestMetric::kLoss, 0.5, &state));
  state.step = 20;
  EXPECT_FALSE(NoteEvaluation(BestMetric::kLoss, 0.5, &state));
  EXPECT_FALSE(NoteEvaluation(BestMetric::kLoss, std::nan(""), &state));
  EXPECT_EQ(state.best_step, 10);
  EXPECT_EQ(state.evaluations_without_improvement, 2);
  EXPECT_TRUE(NoteEvaluation(BestMetric::kLoss, 0.4, &state));
  EXPECT_EQ(state.best_step, 20);
  EXPECT_EQ(state.evaluations_without_improvement, 0);
  TrainState accuracy;
  accuracy.step = 1;
  EXPECT_TRUE(NoteEvaluation(BestMetric::kAccuracy, 0.0, &accuracy)) << "the first counts";
  EXPECT_FALSE(NoteEvaluation(BestMetric::kAccuracy, 0.0, &accuracy));
  EXPECT_TRUE(NoteEvaluation(BestMetric::kAccuracy, 0.1, &accuracy));
}

TEST(Best, TheMetricFollowsTheTaskUnlessItIsChosen) {
  TrainConfig config;
  EXPECT_EQ(ChooseBestMetric(config, true), BestMetric::kAccuracy);
  EXPECT_EQ(ChooseBestMetric(config, false), BestMetric::kLoss);
  config.train_best_metric = "loss";
  EXPECT_EQ(ChooseBestMetric(config, true), BestMetric::kLoss);
}

TEST(EvaluationTest, TokensHaveAPerplexity) {
  const Evaluation tokens{.samples = 2, .targets = 8, .correct = 2, .loss_sum = 8};
  EXPECT_EQ(EvaluationSummary(tokens),
            "test loss 1.0000, perplexity 2.71828, token accuracy 0.2500 (2 of 8)");
  const Evaluation images{.samples = 8, .targets = 8, .correct = 2, .loss_sum = 8};
  EXPECT_EQ(EvaluationSummary(images), "test accuracy 0.2500 (2 of 8), loss 1.0000");
  EXPECT_TRUE(std::isnan(Evaluation{}.loss())) << "no target, no mean";
}

TEST(EvaluationTest, SwappedWeightsComeBackBitByBit) {
  const std::vector<NamedTensor> parameters = {{"a", at::rand({3})}, {"b", at::rand({2, 2})}};
  const std::vector<NamedTensor> averaged = {{"a", at::rand({3})}, {"b", at::rand({2, 2})}};
  const at::Tensor a = parameters[0].tensor.clone();
  const at::Tensor other = averaged[0].tensor.clone();
  {
    const SwappedWeights swapped(parameters, averaged);
    EXPECT_TRUE(parameters[0].tensor.equal(other));
    EXPECT_TRUE(averaged[0].tensor.equal(a));
  }
  EXPECT_TRUE(parameters[0].tensor.equal(a));
  EXPECT_TRUE(averaged[0].tensor.equal(other));
}

// Labels are random, so the accuracy on other samples goes up and down.
class EdgeTest : public ::testing::Test {
 protected:
  // 60 samples in batches of 8: 7 steps an epoch.
  EdgeTest() : config_(WriteRandomData(folder_.path() + "/data", 60, 40)) {
    config_.checkpoint_async = false;
  }
  std::string RunDir(const std::string& name) {
    const std::string dir = folder_.path() + "/" + name;
    fs::create_directories(dir);
    return dir;
  }
  TemporaryFolder folder_;
  TrainConfig config_;
};

TEST_F(EdgeTest, EvaluationsComeWhenAskedForAndAreAFileOfTheirOwn) {
  config_.train_evaluate_every_steps = 5;
  config_.log_every_steps = 2;
  const TrainOutcome outcome = Train({.config = config_, .run_dir = RunDir("run")});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  const std::vector<std::string> lines = Lines(folder_.path() + "/run/evaluations.jsonl");
  ASSERT_EQ(lines.size(), 3u) << "steps 5 and 10, and the end";
  EXPECT_THAT(lines[0], HasSubstr("{\"step\":5,\"epoch\":1,\"test_loss\":"));
  EXPECT_THAT(lines[1], HasSubstr("{\"step\":10,\"epoch\":2,\"test_loss\":"));
  EXPECT_THAT(lines[2], HasSubstr("{\"step\":14,\"epoch\":2,\"test_loss\":"));
  for (const std::string& line : lines) EXPECT_THAT(line, HasSubstr("\"test_accuracy\":"));
  const std::vector<std::string> training = Lines(folder_.path() + "/run/metrics.jsonl");
  EXPECT_EQ(training.size(), 7u) << "three of each epoch's seven steps, and the last one";
  for (const std::string& line : training) {
    for (const char* key : {"step", "epoch", "loss", "lr", "samples_per_s", "data_wait_s"})
      EXPECT_THAT(line, HasSubstr(absl::StrCat("\"", key, "\":"))) << "in every line";
  }
  EXPECT_EQ(outcome.results.count("METRIC.test_loss"), 1u);
  EXPECT_EQ(outcome.results.count("METRIC.early_stopped"), 0u);
}

TEST_F(EdgeTest, OnlyTheBestCheckpointsCarryTheMark) {  // MA14
  config_.checkpoint_best = true;
  config_.checkpoint_every_steps = 0;
  config_.train_epochs = 6;
  const TrainOutcome outcome = Train({.config = config_, .run_dir = RunDir("run")});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  double best = -1;
  std::set<int64_t> expected;  // an accuracy above all before it
  for (const std::string& line : Lines(folder_.path() + "/run/evaluations.jsonl")) {
    const auto at = line.find("\"test_accuracy\":");
    const double accuracy = std::stod(line.substr(at + 16));
    if (accuracy > best) expected.insert(std::stoll(line.substr(8)));
    best = std::max(best, accuracy);
  }
  std::set<int64_t> marked;
  for (int64_t step : outcome.committed) {
    const std::string mark =
        absl::StrCat(folder_.path(), "/run/checkpoints/step-", step, "/", kBestMark);
    if (!fs::exists(mark)) continue;
    marked.insert(step);
    EXPECT_THAT(Lines(mark)[0], HasSubstr(absl::StrCat("{\"step\":", step, ",\"value\":")));
  }
  EXPECT_EQ(marked, expected);
  EXPECT_EQ(outcome.results.at("METRIC.best_step"), absl::StrCat(*expected.rbegin()));
}

// Where the best checkpoint cannot be written, nothing may call it the best: the next evaluation
// that beats what there is, is kept.
TEST_F(EdgeTest, ABestCheckpointThatWasNotSavedDoesNotCount) {  // MA14
  config_.checkpoint_best = true;
  config_.checkpoint_every_steps = 4;
  config_.train_epochs = 4;
  config_.train_optimizer = "sgd";
  config_.train_lr = 1e-12;  // all evaluations are equal, so the first would stay the best one
  for (const bool async : {false, true}) {
    config_.checkpoint_async = async;
    const std::string run_dir = RunDir(absl::StrCat("async-", async));
    const TrainOutcome outcome =
        Train({.config = config_, .run_dir = run_dir, .unwritable = {7, 14}});
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.results.at("METRIC.best_step"), "21");
    EXPECT_TRUE(fs::exists(run_dir + "/checkpoints/step-21/" + kBestMark));
    EXPECT_FALSE(fs::exists(run_dir + "/checkpoints/step-28/" + kBestMark)) << "no better";
    for (const auto& [step, best] : {std::pair(8, 0), {12, 0}, {16, 0}, {24, 21}, {28, 21}}) {
      const std::string path = absl::StrCat(run_dir, "/checkpoints/step-", step);
      if (async && !fs::exists(path)) continue;  // left out while another was being written
      const auto state = ReadTrainState(path, config_);
      ASSERT_TRUE(state.ok()) << state.status();
      EXPECT_EQ(state->best_step, best) << "in the checkpoint of step " << step;
    }
  }
}

// Its output is 0 at first; from step 3 on gradients are 10⁸ times as large as they should be.
std::string SaveSteepModule(const std::string& path) {
  torch::jit::Module module("Steep");
  module.register_parameter("weight", (at::randn({784, 10}) * 0.01).requires_grad_(), false);
  module.register_buffer("calls", at::zeros({}));
  module.define(R"(
    def forward(self, x):
        self.calls.add_(1)
        return torch.matmul(x.flatten(1), self.weight) * (1e8 * (self.calls > 3).float())
  )");
  module.save(path);
  return path;
}

class FiniteWeightsTest : public EdgeTest {
 protected:
  FiniteWeightsTest() {
    config_.model_name = "torchscript";
    config_.model_file = SaveSteepModule(folder_.path() + "/steep.pt");
    config_.train_evaluate = false;
    config_.train_optimizer = "sgd";
    config_.train_lr = 1e35;
    config_.train_steps = 5;
    config_.train_epochs = 0;
    config_.checkpoint_every_steps = 1;
  }
};

// Gradients of 10⁸ are finite, 10³⁵ times as much is not: no look at gradients can see it.
TEST_F(FiniteWeightsTest, AreWhatACheckpointHolds) {
  for (const bool async : {false, true}) {
    for (const int64_t fingerprints : {0, 1000}) {
      config_.checkpoint_async = async;
      config_.checks_fingerprint_every_steps = fingerprints;
      const TrainOutcome outcome = Train(
          {.config = config_, .run_dir = RunDir(absl::StrCat("run-", async, "-", fingerprints))});
      EXPECT_EQ(outcome.status.code(), absl::StatusCode::kFailedPrecondition);
      // While one is being written the next is left out.
      ASSERT_THAT(outcome.committed, Not(::testing::IsEmpty()));
      EXPECT_THAT(outcome.committed, ::testing::Each(::testing::Lt(3)));
      EXPECT_THAT(std::string(outcome.status.message()),
                  HasSubstr(absl::StrCat("step 3: on rank 0 weights are not finite, first weight; "
                                         "the checkpoint of step ",
                                         outcome.committed.back(),
                                         " is the last good one. No checkpoint of this step")));
    }
  }
}

TEST_F(FiniteWeightsTest, AreLookedForBeforeTheLastCheckpointToo) {
  config_.checkpoint_every_steps = 0;
  config_.train_steps = 3;
  const TrainOutcome outcome = Train({.config = config_, .run_dir = RunDir("run")});
  EXPECT_THAT(
      std::string(outcome.status.message()),
      HasSubstr("weights are not finite, first weight; no checkpoint was committed before"));
  EXPECT_THAT(outcome.committed, ::testing::IsEmpty());
}

TEST_F(FiniteWeightsTest, ThatWereDroppedAreNotTheLastGoodOnes) {
  const TrainOutcome outcome =
      Train({.config = config_, .run_dir = RunDir("run"), .unwritable = {2}});
  EXPECT_THAT(std::string(outcome.status.message()),
              HasSubstr("the checkpoint of step 1 is the last good one"));
}

TEST_F(FiniteWeightsTest, AreNotAskedForWhereTheyAreIgnored) {
  config_.checks_non_finite = "ignore";
  ::testing::internal::CaptureStdout();
  const TrainOutcome outcome = Train({.config = config_, .run_dir = RunDir("run")});
  const std::string log = ::testing::internal::GetCapturedStdout();
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.committed, ::testing::ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(log, HasSubstr("step 3: on rank 0 weights are not finite, first weight; the "
                             "checkpoint of step 2 is the last good one; checks.non_finite"));
  EXPECT_THAT(log, Not(HasSubstr("step 4: on rank 0"))) << "it is said once";
}

// TR45: the decision follows from sums over all ranks, and a resume from any step comes to the same
// end.
TEST_F(EdgeTest, AnEarlyEndComesAtTheSameStepAfterAnyResume) {
  config_.train_early_stop = 2;
  config_.train_epochs = 60;
  config_.checkpoint_every_steps = 7;  // at the evaluations: the counts of one are not in it yet
  const TrainOutcome whole = Train({.config = config_, .run_dir = RunDir("whole")});
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_EQ(whole.results.at("METRIC.early_stopped"), "1");
  const int64_t last = std::stoll(whole.results.at("FINAL_STEP"));
  ASSERT_LT(last, 7 * 60);
  EXPECT_EQ(last % 7, 0);
  for (int64_t step : whole.committed) {
    const std::string again = RunDir(absl::StrCat("again-", step));
    const std::string name = absl::StrCat("/checkpoints/step-", step);
    fs::create_directories(again + "/checkpoints");
    fs::copy(folder_.path() + "/whole" + name, again + name);
    const TrainOutcome rest = Train({.config = config_, .run_dir = again, .resume_step = step});
    ASSERT_TRUE(rest.status.ok()) << rest.status;
    for (const char* key : {"FINAL_STEP", "WEIGHTS_DIGEST", "METRIC.best_step", "METRIC.best_value",
                            "METRIC.early_stopped"}) {
      EXPECT_EQ(rest.results.at(key), whole.results.at(key)) << step << " " << key;
    }
  }
}

TEST_F(EdgeTest, ARunThatDidAllItsStepsDidNotEndEarly) {
  config_.train_early_stop = 1;
  config_.train_optimizer = "sgd";
  config_.train_lr = 0;  // the second evaluation, at the end, is no better than the first
  ::testing::internal::CaptureStdout();
  const TrainOutcome outcome = Train({.config = config_, .run_dir = RunDir("run")});
  const std::string log = ::testing::internal::GetCapturedStdout();
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.results.at("FINAL_STEP"), "14");
  EXPECT_EQ(outcome.results.at("METRIC.best_step"), "7");
  EXPECT_EQ(outcome.results.count("METRIC.early_stopped"), 0u);
  EXPECT_THAT(log, Not(HasSubstr("stopping early")));
}

// After a resume on fewer or more ranks less than a batch may be left of the epoch.
TEST_F(EdgeTest, AnEpochThatEndsWithoutAnUpdateIsEvaluated) {
  config_.checkpoint_every_steps = 3;
  const std::string run_dir = RunDir("run");
  ASSERT_TRUE(Train({.config = config_, .run_dir = run_dir}).status.ok());
  // As if four ranks had used 56 of the 60 samples.
  const std::string path = run_dir + "/checkpoints/step-3/trainer_state.json";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string changed =
      absl::StrReplaceAll(text.str(), {{"\"world_size\": 1", "\"world_size\": 4"},
                                       {"\"samples_in_epoch\": 24", "\"samples_in_epoch\": 56"},
                                       {"\"samples_seen\": 24", "\"samples_seen\": 56"}});
  ASSERT_NE(changed, text.str());
  std::ofstream(path) << changed;
  for (int64_t step : {6, 9, 12, 14})
    fs::remove_all(absl::StrCat(run_dir, "/checkpoints/step-", step));
  fs::remove(run_dir + "/evaluations.jsonl");
  const TrainOutcome rest = Train({.config = config_, .run_dir = run_dir, .resume_step = 3});
  ASSERT_TRUE(rest.status.ok()) << rest.status;
  EXPECT_EQ(rest.results.at("FINAL_STEP"), "10");
  EXPECT_THAT(Lines(run_dir + "/evaluations.jsonl").at(0), HasSubstr("{\"step\":3,\"epoch\":1,"));
}

// A stop at the end of an epoch does not wait for its evaluation: the resume makes it, and marks
// the checkpoint that is there already.
TEST_F(EdgeTest, AResumeMakesTheEvaluationThatAStopHasLeftOut) {
  config_.train_epochs = 1;
  config_.train_evaluate = false;
  const std::string run_dir = RunDir("run");
  ASSERT_TRUE(Train({.config = config_, .run_dir = run_dir}).status.ok());
  config_.train_epochs = 2;
  config_.train_evaluate = true;
  config_.checkpoint_best = true;
  ASSERT_TRUE(Train({.config = config_, .run_dir = run_dir, .resume_step = 7}).status.ok());
  EXPECT_TRUE(fs::exists(run_dir + "/checkpoints/step-7/" + kBestMark));
  EXPECT_THAT(Lines(run_dir + "/evaluations.jsonl").at(0), HasSubstr("{\"step\":7,\"epoch\":1,"));
}

}  // namespace
}  // namespace ddprun
