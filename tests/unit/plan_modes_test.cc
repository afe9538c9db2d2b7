// What ddp-worker says of a job before it is trained: figures that can be counted by hand, memory
// as it is measured, and bad input as an error.
#include "worker/trainer/plan_modes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/client_keeper.h"
#include "tests/unit/trainer_harness.h"
#include "worker/trainer/plan_job.h"
#include "worker/trainer/plan_memory.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PlanModesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteRandomData(folder_.path() + "/data", 90, 20);
    config_.model_name = "simple_cnn";
    config_.data_kind = "idx";
    config_.data_dir = folder_.path() + "/data";
    config_.data_batch_size = 4;
    config_.train_epochs = 3;
  }
  nlohmann::json Plan(int world_size) {
    const auto plan = PlanJson(config_, world_size);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return nlohmann::json::parse(plan.ok() ? *plan : "{}");
  }
  std::string ErrorOf(int world_size) {
    const absl::Status status = CheckJob(config_, world_size);
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  }
  TemporaryFolder folder_;
  TrainConfig config_;
};

TEST_F(PlanModesTest, CountsAreThoseOfTheJob) {
  config_.train_accumulation_steps = 2;
  const auto plan = Plan(3);
  constexpr int64_t kParameters = 32 * 9 + 32 + 10 * 32 * 13 * 13 + 10;
  EXPECT_EQ(plan["parameters"], kParameters);
  EXPECT_EQ(plan["samples"], 90);
  EXPECT_EQ(plan["samples_per_step"], 4 * 2 * 3);
  EXPECT_EQ(plan["steps_per_epoch"], 4) << "7 whole batches of 4 of 30 samples, two an update";
  EXPECT_EQ(plan["steps"], 12);
  const auto& memory = plan["memory"];
  EXPECT_EQ(memory["weights"], kParameters * 4);
  EXPECT_EQ(memory["gradients"], kParameters * 4);
  EXPECT_EQ(memory["optimizer"], kParameters * 8 + 4 * 4) << "two moments, and a step for each";
  EXPECT_EQ(memory["average"], 0);
  EXPECT_EQ(plan["communication"]["reduced_bytes"], kParameters * 4);
  EXPECT_EQ(plan["communication"]["sent_bytes_per_rank"], kParameters * 4 * 4 / 3);
  EXPECT_THAT(plan["assumptions"].dump(),
              HasSubstr("ranks on the CPUs of one machine add them up in memory that they share"));
}

TEST_F(PlanModesTest, OneRankSendsNothingAndSgdKeepsNothing) {
  config_.train_optimizer = "sgd";
  const auto plan = Plan(1);
  EXPECT_EQ(plan["communication"]["sent_bytes_per_rank"], 0);
  EXPECT_EQ(plan["memory"]["optimizer"], 0);
  EXPECT_EQ(plan["steps_per_epoch"], 22);
}

// What two measurements say of a batch is what a measurement of that batch says.
TEST_F(PlanModesTest, ActivationsOfABatchFollowFromOneSampleAndTwo) {
  auto job = PlanJob(config_, 1);
  ASSERT_TRUE(job.ok()) << job.status();
  const SampleSpec samples = job->train_data->spec();
  const auto cost = MeasureActivations(&*job->model, config_, samples);
  ASSERT_TRUE(cost.ok()) << cost.status();
  // Input, convolution and its gradient: nothing of a sample takes less.
  EXPECT_GE(cost->per_sample, 4 * (28 * 28 + 2 * 32 * 26 * 26));
  for (const NamedTensor& item : job->model->Parameters()) {
    item.tensor.mutable_grad() = at::zeros_like(item.tensor);
  }
  const int64_t measured = MeasurePeak(&*job->model, config_, samples, 32);
  EXPECT_NEAR(static_cast<double>(cost->Of(32)), static_cast<double>(measured),
              0.05 * static_cast<double>(measured));
}

TEST_F(PlanModesTest, HalfTheBatchIsOfferedWithItsFigures) {
  const auto plan = Plan(2);
  bool offered = false;
  for (const auto& option : plan["options"]) {
    EXPECT_LT(option["activations"], plan["memory"]["activations"]);
    EXPECT_EQ(plan["memory"]["on_device"].get<int64_t>() - option["on_device"].get<int64_t>(),
              plan["memory"]["activations"].get<int64_t>() - option["activations"].get<int64_t>());
    if (option["change"] == "[data] batch_size = 2 with [train] accumulation_steps = 2") {
      offered = true;
    }
  }
  EXPECT_TRUE(offered) << plan["options"];
}

// Whoever cannot wait for all has what was measured until then, and the names of the rest.
TEST_F(PlanModesTest, WhatIsKnownSoFarIsToldOptionByOption) {
  auto job = PlanJob(config_, 1);
  ASSERT_TRUE(job.ok()) << job.status();
  const SampleSpec samples = job->train_data->spec();
  std::vector<MemoryAdvice> known;
  const auto all = PlanMemory(&*job->model, *job->update, config_, samples, 60,
                              [&](MemoryAdvice advice) { known.push_back(std::move(advice)); });
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(known.size(), 3u);
  for (size_t i = 0; i < known.size(); ++i) {
    EXPECT_EQ(known[i].unmeasured.size(), 3 - i);
    EXPECT_EQ(known[i].plan.activations, all->plan.activations);
    EXPECT_FALSE(known[i].options.empty()) << "half the batch costs no measurement";
  }
  EXPECT_TRUE(all->unmeasured.empty());
  const auto in_no_time = PlanMemory(&*job->model, *job->update, config_, samples, 0);
  ASSERT_TRUE(in_no_time.ok()) << in_no_time.status();
  EXPECT_EQ(in_no_time->unmeasured.size(), 3u);
  EXPECT_EQ(in_no_time->options.size(), 1u);
}

TEST_F(PlanModesTest, AGoodJobIsGoodAndLeavesNoGradients) {
  EXPECT_TRUE(CheckJob(config_, 4).ok());
  auto job = PlanJob(config_, 1);
  ASSERT_TRUE(job.ok());
  ASSERT_TRUE(PlanMemory(&*job->model, *job->update, config_, job->train_data->spec(), 60).ok());
  for (const NamedTensor& item : job->model->Parameters()) {
    EXPECT_FALSE(item.tensor.grad().defined()) << item.name;
  }
}

TEST_F(PlanModesTest, BadJobsAreErrorsBeforeTheStart) {
  EXPECT_THAT(ErrorOf(91), AllOf(HasSubstr("90 samples"), HasSubstr("91 ranks")));
  EXPECT_THAT(ErrorOf(40), AllOf(HasSubstr("no whole update of batch_size 4")));
  config_.model_name = "simple_cmm";
  EXPECT_THAT(ErrorOf(1), HasSubstr("simple_cnn"));
  config_.model_name = "simple_cnn";
  config_.parallel_sync_bn = "on";
  EXPECT_THAT(ErrorOf(2), HasSubstr("[parallel] sync_bn: the model simple_cnn has no batch norm"));
  config_.parallel_sync_bn = "auto";
  config_.data_dir = folder_.path() + "/nothing";
  EXPECT_THAT(ErrorOf(1), HasSubstr("/nothing"));
}

TEST_F(PlanModesTest, AModelThatDoesNotFitIntoMemoryIsAnErrorInWords) {
  int overcommit = 0;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  if (overcommit == 1) GTEST_SKIP() << "the kernel promises any amount of memory";
  std::ofstream(folder_.path() + "/train.bin", std::ios::binary) << std::string(512, 'a');
  config_.model_name = "gpt";
  config_.model_vocab_size = 1 << 20;
  config_.model_d_model = 1 << 20;  // 4 TB of embeddings
  config_.model_heads = 1;
  config_.model_sequence_length = 8;
  config_.data_kind = "tokens";
  config_.data_dir = folder_.path();
  config_.train_evaluate = false;
  setenv("DDPRUN_TRAIN_CONFIG", ToJson(config_).c_str(), 1);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(RunPlanMode("--check", "1"), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("there is not enough memory"), HasSubstr("4398046511104 bytes")));
  unsetenv("DDPRUN_TRAIN_CONFIG");
}

}  // namespace
}  // namespace ddprun
