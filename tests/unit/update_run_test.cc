// Whole runs of one rank with what the update side keeps: loss scale, averages, schedules in
// checkpoints and metrics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/safetensors.h"
#include "tests/unit/client_keeper.h"
#include "tests/unit/trainer_harness.h"
#include "worker/checkpoint/generators.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/checkpoint/stream_copy.h"
#include "worker/checkpoint/tensor_format.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class UpdateRunTest : public ::testing::Test {
 protected:
  // 60 samples in batches of 8: 7 steps an epoch, 14 in all.
  UpdateRunTest() : config_(WriteRandomData(folder_.path() + "/data", 60, 20)) {
    config_.checkpoint_async = false;
    config_.checkpoint_every_steps = 5;
    config_.log_every_steps = 1;
  }
  std::string Dir(const std::string& name) {
    const std::string dir = folder_.path() + "/" + name;
    std::filesystem::create_directories(dir);
    return dir;
  }
  // Trains wholly, then again from step 5, and compares all files of the last checkpoint.
  void ExpectTheSameAfterAResume(const std::vector<std::string>& files) {
    const TrainOutcome whole = Train({.config = config_, .run_dir = Dir("whole")});
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    std::filesystem::create_directories(Dir("rest") + "/checkpoints");
    std::filesystem::copy(Dir("whole") + "/checkpoints/step-5",
                          Dir("rest") + "/checkpoints/step-5");
    const TrainOutcome rest = Train({.config = config_, .run_dir = Dir("rest"), .resume_step = 5});
    ASSERT_TRUE(rest.status.ok()) << rest.status;
    for (const std::string& file : files) {
      const std::string name = "/checkpoints/step-14/" + file;
      const std::string expected = ReadText(Dir("whole") + name);
      EXPECT_FALSE(expected.empty()) << file;
      EXPECT_TRUE(ReadText(Dir("rest") + name) == expected) << file;
    }
  }

  TemporaryFolder folder_;
  TrainConfig config_;
};

TEST(Snapshot, HoldsTensorsOfAnySizeAndOrderOfElements) {
  at::set_num_threads(2);
  const std::vector<NamedTensor> tensors = {
      {"large", at::randn({5, 1'000'000})},  // several chunks, and a rest
      {"turned", at::randn({300, 7}).t()},
      {"half", at::randn({33}).to(at::kHalf)},
      {"none", at::empty({0, 3})},
      {"count", at::tensor(int64_t{-7})}};
  auto snapshot = Snapshot::Create(tensors, 2);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  snapshot->Populate();
  for (int round = 0; round < 2; ++round) {
    for (const NamedTensor& item : tensors) at::Tensor(item.tensor).add_(1);
    snapshot->Capture();
    const std::string path = absl::StrCat(testing::TempDir(), "/snapshot.", getpid());
    std::ofstream(path, std::ios::binary)
        << snapshot->header()
        << std::string(static_cast<const char*>(snapshot->data()), snapshot->data_bytes());
    const auto file = SafetensorsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    std::vector<NamedTensor> loaded;
    for (const NamedTensor& item : tensors) {
      loaded.push_back({item.name, at::zeros_like(item.tensor)});
    }
    ASSERT_TRUE(LoadTensors(*file, loaded).ok());
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(at::equal(loaded[i].tensor, tensors[i].tensor)) << tensors[i].name;
    }
    std::filesystem::remove(path);
  }
  at::set_num_threads(1);
}

// Whatever the addresses and the size: these bytes, and none beside them.
TEST(StreamCopy, CopiesAsMemcpyDoes) {
  constexpr size_t kSlack = 80;
  constexpr char kOutside = 0x55;
  for (const size_t bytes : {0, 1, 63, 64, 4096, 16'383, 16'448, 16'511, 49'152, 100'003}) {
    std::string source(bytes + kSlack, '\0');
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 131 + i / 251);
    for (const size_t to : {0, 1, 32, 63}) {
      for (const size_t from : {0, 3, 16, 64}) {
        std::string target(bytes + kSlack, kOutside);
        std::string expected = target;
        expected.replace(to, bytes, source, from, bytes);
        StreamCopy(target.data() + to, source.data() + from, bytes);
        ASSERT_TRUE(target == expected) << bytes << " bytes, from " << from << " to " << to;
      }
    }
  }
}

// The GPU's generator is in the file only where there is one.
TEST(Generators, TheirStatesComeBack) {
  SeedGenerators(5, at::kCPU);
  const std::vector<NamedTensor> states = GeneratorStates(at::kCPU);
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0].name, "cpu");
  const at::Tensor first = at::rand({3});
  EXPECT_FALSE(at::equal(at::rand({3}), first));
  SetGeneratorStates(states, at::kCPU);
  EXPECT_TRUE(at::equal(at::rand({3}), first));
}

TEST_F(UpdateRunTest, AveragesLossScaleAndScheduleGoOnAfterAResume) {
  config_.train_ema_decay = 0.9;
  config_.train_clip_norm = 1;
  config_.train_schedule = "cosine";
  config_.train_warmup_steps = 3;
  config_.precision_amp = "fp16";
  config_.precision_loss_scale = 1024;
  config_.precision_loss_scale_growth_steps = 4;
  ExpectTheSameAfterAResume(
      {"model.safetensors", "optimizer.safetensors", "ema.safetensors", "rng-0-of-1.safetensors"});
  const std::string dir = Dir("whole") + "/checkpoints/step-14";
  const auto optimizer = SafetensorsFile::Open(dir + "/optimizer.safetensors");
  ASSERT_TRUE(optimizer.ok());
  const TensorInfo* scale = optimizer->Find("loss_scale");
  const TensorInfo* tracker = optimizer->Find("loss_scale_growth_tracker");
  ASSERT_TRUE(scale != nullptr && tracker != nullptr);
  float scale_value = 0;
  int32_t tracker_value = 0;
  memcpy(&scale_value, optimizer->Data(*scale), sizeof scale_value);
  memcpy(&tracker_value, optimizer->Data(*tracker), sizeof tracker_value);
  EXPECT_EQ(scale_value, 8192) << "doubled after 4, 8 and 12 updates";
  EXPECT_EQ(tracker_value, 2);
  // The averaged model is a whole one, and another.
  const auto model = SafetensorsFile::Open(dir + "/model.safetensors");
  const auto average = SafetensorsFile::Open(dir + "/ema.safetensors");
  ASSERT_TRUE(model.ok() && average.ok());
  ASSERT_EQ(model->header().tensors.size(), average->header().tensors.size());
  for (const TensorInfo& tensor : model->header().tensors) {
    const TensorInfo* other = average->Find(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_NE(memcmp(model->Data(tensor), average->Data(*other), tensor.bytes()), 0) << tensor.name;
  }
}

TEST_F(UpdateRunTest, MetricsHaveRateScaleAndNorm) {
  config_.train_clip_norm = 1;
  config_.precision_amp = "fp16";
  config_.train_lr = 0.5;
  config_.train_warmup_steps = 4;
  ASSERT_TRUE(Train({.config = config_, .run_dir = Dir("run")}).status.ok());
  const std::string metrics = ReadText(Dir("run") + "/metrics.jsonl");
  const std::string first = metrics.substr(0, metrics.find('\n'));
  EXPECT_THAT(first, HasSubstr("\"lr\":0.125"));
  EXPECT_THAT(first, HasSubstr("\"loss_scale\":65536"));
  EXPECT_THAT(first, HasSubstr("\"grad_norm\":"));
}

// From its fourth call on (the first is a trial before the run) it gives NaN for pictures whose
// first pixel is bright.
std::string SaveBreakingModule(const std::string& path) {
  torch::jit::Module module("Breaking");
  module.register_parameter("weight", (at::randn({784, 10}) * 0.01).requires_grad_(), false);
  module.register_buffer("calls", at::zeros({}));
  module.define(R"(
    def forward(self, x):
        self.calls.add_(1)
        x = x.flatten(1)
        bright = torch.logical_and(self.calls > 3, x[:, :1] > 0)
        return torch.matmul(x, self.weight) + torch.log(1 - 2 * bright.float())
  )");
  module.save(path);
  return path;
}

// An overflow of fp16 goes away when the scale is halved; what stays is traced to its first place,
// as it is without a scale, and an overflow before is no news.
TEST_F(UpdateRunTest, WhatNoLossScaleMendsIsTracedToBlockAndSamples) {
  config_.model_name = "torchscript";
  config_.model_file = SaveBreakingModule(folder_.path() + "/breaking.pt");
  const std::string place =
      "the loss is not finite on rank 0: the first output that is not finite "
      "is that of block 0 (log) for these training data: sample ";
  const TrainOutcome plain = Train({.config = config_, .run_dir = Dir("plain")});
  EXPECT_EQ(plain.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(plain.status.message()), HasSubstr("step 3: " + place));
  config_.precision_amp = "fp16";
  config_.precision_loss_scale = 1e-6;  // seven halvings above the end
  for (const char* non_finite : {"stop", "ignore"}) {
    config_.checks_non_finite = non_finite;
    const TrainOutcome outcome = Train({.config = config_, .run_dir = Dir(non_finite)});
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(outcome.status.message()),
                AllOf(HasSubstr("step 9: " + place), HasSubstr("[precision] amp = \"fp16\": "),
                      HasSubstr("no loss scale can help")));
  }
}

TEST_F(UpdateRunTest, WarmupLongerThanARunOfEpochsIsAnErrorBeforeTraining) {
  config_.train_warmup_steps = 15;
  EXPECT_THAT(Train({.config = config_, .run_dir = Dir("run")}).status.message(),
              HasSubstr("[train] warmup_steps: is 15, longer than the whole run of 14 steps"));
}

}  // namespace
}  // namespace ddprun
