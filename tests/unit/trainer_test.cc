// The trainer of one rank, whole runs: resume from every checkpoint ends with the same bits; stops;
// the last checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/client_keeper.h"
#include "tests/unit/trainer_harness.h"
#include "worker/checkpoint/checkpoint_reader.h"

namespace ddprun {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class TrainerTest : public ::testing::Test {
 protected:
  // 60 samples in batches of 8: 7 steps an epoch, 14 in all.
  TrainerTest() : config_(WriteRandomData(folder_.path() + "/data", 60, 20)) {}

  std::string RunDir(const std::string& name) {
    const std::string dir = folder_.path() + "/" + name;
    std::filesystem::create_directories(dir);
    return dir;
  }
  // A new run folder that holds the checkpoint of `step` of another one, and no later ones.
  std::string RunDirFrom(const std::string& run_dir, int64_t step) {
    const std::string dir =
        RunDir(absl::StrCat(std::filesystem::path(run_dir).filename().string(), "-", step));
    const std::string name = absl::StrCat("/checkpoints/step-", step);
    std::filesystem::create_directories(dir + "/checkpoints");
    std::filesystem::copy(run_dir + name, dir + name);
    return dir;
  }
  // Waits for each commit, so that no periodic checkpoint is left out.
  TrainOutcome TrainWithAllCheckpoints(TrainConfig config, const std::string& run_dir) {
    config.checkpoint_async = false;
    return Train({.config = config, .run_dir = run_dir});
  }

  TemporaryFolder folder_;
  TrainConfig config_;
};

// TR29, TR31, C9, and the promise of bit-identity.
TEST_F(TrainerTest, AResumeFromAnyCheckpointEndsWithTheSameWeights) {
  for (const char* optimizer : {"adam", "adamw", "sgd"}) {
    TrainConfig config = config_;
    config.train_optimizer = optimizer;
    if (config.train_optimizer == "sgd") config.train_momentum = 0.9;
    const std::string run_dir = RunDir(optimizer);
    const TrainOutcome whole = TrainWithAllCheckpoints(config, run_dir);
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    EXPECT_EQ(whole.committed, (std::vector<int64_t>{3, 6, 9, 12, 14}));
    for (int64_t step : whole.committed) {
      const std::string again = RunDirFrom(run_dir, step);
      const TrainOutcome rest = Train({.config = config, .run_dir = again, .resume_step = step});
      ASSERT_TRUE(rest.status.ok()) << rest.status;
      for (const char* key :
           {"WEIGHTS_DIGEST", "FINAL_STEP", "METRIC.test_accuracy", "METRIC.final_loss"}) {
        EXPECT_EQ(rest.results.at(key), whole.results.at(key))
            << optimizer << " " << step << " " << key;
      }
    }
  }
}

TEST_F(TrainerTest, AccumulationShufflingAndTailsSurviveAResume) {  // TR8
  TrainConfig config = config_;
  config.train_accumulation_steps = 3;
  config.data_drop_last = false;  // 8 batches, the last of 4 samples: 3 updates an epoch
  config.checkpoint_every_steps = 1;
  const TrainOutcome whole = TrainWithAllCheckpoints(config, RunDir("whole"));
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_EQ(whole.results.at("FINAL_STEP"), "6");
  for (int64_t step : {1, 2, 3, 4, 5}) {
    const std::string again = RunDirFrom(RunDir("whole"), step);
    const TrainOutcome rest = Train({.config = config, .run_dir = again, .resume_step = step});
    ASSERT_TRUE(rest.status.ok()) << rest.status;
    EXPECT_EQ(rest.results.at("WEIGHTS_DIGEST"), whole.results.at("WEIGHTS_DIGEST")) << step;
  }
}

TEST_F(TrainerTest, ResultsDoNotDependOnLoaderThreadsCheckpointsOrTheCache) {
  const TrainOutcome base = Train({.config = config_, .run_dir = RunDir("base")});
  ASSERT_TRUE(base.status.ok()) << base.status;
  TrainConfig other = config_;
  other.data_workers = 0;
  other.checkpoint_every_steps = 0;
  other.log_every_steps = 1;
  const TrainOutcome changed = Train({.config = other, .run_dir = RunDir("changed")});
  ASSERT_TRUE(changed.status.ok()) << changed.status;
  EXPECT_EQ(changed.results.at("WEIGHTS_DIGEST"), base.results.at("WEIGHTS_DIGEST"));
  EXPECT_EQ(changed.committed, (std::vector<int64_t>{14})) << "the last one is always written";
  other.train_seed = 7;
  EXPECT_NE(Train({.config = other, .run_dir = RunDir("seed")}).results.at("WEIGHTS_DIGEST"),
            base.results.at("WEIGHTS_DIGEST"));
}

TEST_F(TrainerTest, AStopEndsAtACommittedCheckpointAndTheRunGoesOnFromIt) {
  TrainConfig config = config_;
  config.train_epochs = 400;  // long enough that the stop comes before the end
  const std::string run_dir = RunDir("stopped");
  const TrainOutcome stopped = Train({.config = config, .run_dir = run_dir, .stop_after = 1});
  ASSERT_TRUE(stopped.status.ok()) << stopped.status;
  ASSERT_FALSE(stopped.committed.empty());
  const int64_t step = stopped.committed.back();
  EXPECT_EQ(stopped.results.count("WEIGHTS_DIGEST"), 0u) << "a stopped run has no result";
  const auto state = ReadTrainState(absl::StrCat(run_dir, "/checkpoints/step-", step), config);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->step, step);
  EXPECT_EQ(state->samples_seen, 8 * step);
  EXPECT_EQ(state->samples_in_epoch, 8 * (step % 7));
  EXPECT_EQ(state->epoch, step / 7);
  // Five more steps, after the stop and without it.
  config.train_epochs = 0;
  config.train_steps = step + 5;
  const TrainOutcome rest = Train({.config = config, .run_dir = run_dir, .resume_step = step});
  const TrainOutcome whole = Train({.config = config, .run_dir = RunDir("whole")});
  ASSERT_TRUE(rest.status.ok()) << rest.status;
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_EQ(rest.results.at("WEIGHTS_DIGEST"), whole.results.at("WEIGHTS_DIGEST"));
}

TEST_F(TrainerTest, TheRunFailsWhenItsLastCheckpointCannotBeKept) {
  const TrainOutcome outcome =
      Train({.config = config_, .run_dir = RunDir("run"), .commit = false});
  EXPECT_THAT(outcome.status.message(),
              HasSubstr("the checkpoint at the end of the run was not saved"));
}

double NumberIn(const std::string& line, const std::string& key) {
  return std::stod(line.substr(line.find(absl::StrCat("\"", key, "\":")) + key.size() + 3));
}

TEST_F(TrainerTest, MetricsAreOneLineAnIntervalWithTheKeysOfTheDocuments) {
  TrainConfig config = config_;
  config.log_every_steps = 2;
  config.train_evaluate = false;  // its lines are others
  const std::string run_dir = RunDir("run");
  const TrainOutcome outcome = Train({.config = config, .run_dir = run_dir});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  std::istringstream lines(ReadText(run_dir + "/metrics.jsonl"));
  int count = 0;
  double least = 1, most = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    for (const char* key : {"step", "epoch", "loss", "lr", "samples_per_s", "data_wait_s",
                            "compute_s", "comm_wait_s", "utilization"}) {
      EXPECT_THAT(line, HasSubstr(absl::StrCat("\"", key, "\":")));
    }
    least = std::min(least, NumberIn(line, "utilization"));
    most = std::max(most, NumberIn(line, "utilization"));
  }
  // MA15: the share of computing of the whole run is among those of its lines.
  const double share = std::stod(outcome.results.at("METRIC.utilization"));
  EXPECT_GE(share, least * 0.99);
  EXPECT_LE(share, most * 1.01);
  EXPECT_GT(share, 0);
  EXPECT_EQ(count, 7) << "batches 2, 4, 6 of two epochs, and the last one";
}

TEST_F(TrainerTest, EpochsThatAreShorterThanTheIntervalAreCountedOn) {
  TrainConfig config = config_;
  config.train_epochs = 4;
  config.log_every_steps = 10;
  const std::string run_dir = RunDir("run");
  ASSERT_TRUE(Train({.config = config, .run_dir = run_dir}).status.ok());
  std::istringstream lines(ReadText(run_dir + "/metrics.jsonl"));
  std::vector<std::string> begins;
  for (std::string line; std::getline(lines, line);) begins.push_back(line.substr(0, 20));
  EXPECT_THAT(begins, ElementsAre("{\"step\":10,\"epoch\":2", "{\"step\":20,\"epoch\":3",
                                  "{\"step\":28,\"epoch\":4"));
}

// One line over two epochs, with an evaluation of 100 times as many samples after each update.
TEST_F(TrainerTest, TheRateOfALineIsThatOfItsUpdatesWithoutTheEvaluationsAmongThem) {
  TrainConfig config = WriteRandomData(folder_.path() + "/long", 60, 800);
  config.train_evaluate_every_steps = 1;
  const std::string run_dir = RunDir("run");
  const TrainOutcome outcome = Train({.config = config, .run_dir = run_dir});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  const std::string line = ReadText(run_dir + "/metrics.jsonl");
  const double seconds = 14 * 8 / NumberIn(line, "samples_per_s");
  const double parts = NumberIn(line, "data_wait_s") + NumberIn(line, "compute_s");
  EXPECT_GE(seconds * 1.01, parts) << "of the same updates";
  EXPECT_LT(seconds, std::stod(outcome.results.at("METRIC.loop_seconds")) / 2) << line;
}

// TR30, C9: another number of ranks goes on after the samples that were used, all ranks together.
TEST_F(TrainerTest, AnotherWorldSizeContinuesBySamplesSeen) {
  const std::string run_dir = RunDir("run");
  TrainConfig config = config_;
  config.train_epochs = 1;
  const TrainOutcome whole = TrainWithAllCheckpoints(config, run_dir);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  // As if four ranks had used 40 of the 60 samples.
  const std::string path = run_dir + "/checkpoints/step-3/trainer_state.json";
  const std::string changed =
      absl::StrReplaceAll(ReadText(path), {{"\"world_size\": 1", "\"world_size\": 4"},
                                           {"\"samples_in_epoch\": 24", "\"samples_in_epoch\": 40"},
                                           {"\"samples_seen\": 24", "\"samples_seen\": 40"}});
  std::ofstream(path) << changed;
  for (int64_t step : {6, 7})
    std::filesystem::remove_all(absl::StrCat(run_dir, "/checkpoints/step-", step));
  const TrainOutcome rest = Train({.config = config, .run_dir = run_dir, .resume_step = 3});
  ASSERT_TRUE(rest.status.ok()) << rest.status;
  EXPECT_EQ(rest.results.at("FINAL_STEP"), "5")
      << "20 samples are left: two batches of 8, four are dropped";
  const auto state = ReadTrainState(run_dir + "/checkpoints/step-5", config);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->samples_seen, 56);
  EXPECT_EQ(state->epoch, 1);
}

TEST_F(TrainerTest, TheStateNotesWhatGradientsWereAddedUpThrough) {
  TrainState state;
  state.config = config_;
  state.all_reduce = "shared memory";
  const std::string json = TrainStateToJson(state);
  const auto back = TrainStateFromJson(json);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->all_reduce, "shared memory");
  const std::string older = absl::StrReplaceAll(json, {{"\"all_reduce\"", "\"unknown\""}});
  EXPECT_EQ(TrainStateFromJson(older)->all_reduce, "") << "of a version that did not note it";
}

TEST_F(TrainerTest, ADamagedOrForeignCheckpointIsAnErrorThatNamesTheFile) {
  const std::string run_dir = RunDir("run");
  ASSERT_TRUE(TrainWithAllCheckpoints(config_, run_dir).status.ok());
  const std::string dir = run_dir + "/checkpoints/step-3";
  TrainConfig other = config_;
  other.train_lr = 0.5;
  EXPECT_THAT(Train({.config = other, .run_dir = run_dir, .resume_step = 3}).status.message(),
              HasSubstr("[train] lr: is 0.5, but the run that is to be resumed has 0.001"));
  std::filesystem::resize_file(dir + "/optimizer.safetensors", 100);
  EXPECT_THAT(Train({.config = config_, .run_dir = run_dir, .resume_step = 3}).status.message(),
              HasSubstr("optimizer.safetensors: not a valid safetensors file"));
  std::ofstream(dir + "/trainer_state.json") << "{\"format\": 2}";
  EXPECT_THAT(Train({.config = config_, .run_dir = run_dir, .resume_step = 3}).status.message(),
              HasSubstr("trainer_state.json: of another format"));
  std::filesystem::remove(dir + "/trainer_state.json");
  EXPECT_THAT(Train({.config = config_, .run_dir = run_dir, .resume_step = 3}).status.message(),
              HasSubstr("trainer_state.json: cannot open"));
}

TEST_F(TrainerTest, ACheckpointIsNotContinuedOnMoreOrFewerSamples) {
  const std::string run_dir = RunDir("whole");
  ASSERT_TRUE(TrainWithAllCheckpoints(config_, run_dir).status.ok());
  TrainConfig config = config_;
  config.data_dir = folder_.path() + "/more";
  WriteRandomData(config.data_dir, 61, 20);
  // The same folder, as far as the configuration says, with other files in it.
  std::filesystem::remove_all(config_.data_dir);
  std::filesystem::rename(config.data_dir, config_.data_dir);
  const TrainOutcome rest =
      Train({.config = config_, .run_dir = RunDirFrom(run_dir, 6), .resume_step = 6});
  EXPECT_EQ(rest.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(rest.status.message()), HasSubstr("now have 61 samples, they had 60"));
}

TEST_F(TrainerTest, RngAndStateFilesAreThere) {
  const std::string run_dir = RunDir("run");
  ASSERT_TRUE(TrainWithAllCheckpoints(config_, run_dir).status.ok());
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "trainer_state.json",
                           "rng-0-of-1.safetensors"}) {
    EXPECT_TRUE(std::filesystem::exists(run_dir + "/checkpoints/step-14/" + name)) << name;
  }
}

}  // namespace
}  // namespace ddprun
