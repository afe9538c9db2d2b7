// Autocast and recompute by blocks: results are bit-identical to those without, buffers move once,
// memory is less.
#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "worker/model/layers/batch_norm.h"
#include "worker/model/loss.h"
#include "worker/trainer/forward.h"
#include "worker/trainer/reducer.h"

namespace ddprun {
namespace {

using at::Tensor;
using testing::HasSubstr;

// Convolution, batch norm and dropout: all that a second forward could get wrong.
class NoisyBlock : public Block {
 public:
  NoisyBlock(int64_t inputs, int64_t outputs)
      : conv_(register_module(
            "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(inputs, outputs, 3).padding(1)))),
        norm_(register_module("norm", std::make_shared<BatchNorm2d>(outputs))) {}
  Tensor forward(const Tensor& input) override {
    return at::dropout(at::relu(norm_->forward(conv_(input))), 0.3, is_training());
  }

 private:
  torch::nn::Conv2d conv_;
  std::shared_ptr<BatchNorm2d> norm_;
};

// Uses the first block's weight a second time.
class TiedHead : public Block {
 public:
  explicit TiedHead(Tensor weight) : weight_(register_parameter("weight", std::move(weight))) {}
  Tensor forward(const Tensor& input) override {
    return at::linear(input.mean({2, 3}), weight_.flatten(1));
  }

 private:
  Tensor weight_;
};

Model MakeModel(int blocks = 3) {
  torch::manual_seed(11);
  std::vector<NamedBlock> list = {{"b0", std::make_shared<NoisyBlock>(2, 6)}};
  for (int i = 1; i < blocks; ++i) {
    list.push_back(
        {absl::StrCat("b", i), std::make_shared<NoisyBlock>(6, i + 1 < blocks ? 6 : 18)});
  }
  list.push_back({"head", std::make_shared<TiedHead>(list[0].block->parameters()[0])});
  return Model(std::move(list), MakeCrossEntropy(0));
}

TrainConfig Config(const char* amp, const char* recompute) {
  TrainConfig config;
  config.precision_amp = amp;
  config.precision_recompute = recompute;
  return config;
}

NamedTensors Named(const std::vector<NamedTensor>& tensors) {
  NamedTensors pairs;
  for (const NamedTensor& item : tensors) pairs.emplace_back(item.name, item.tensor);
  return pairs;
}

// Two updates of two micro-batches each; gradients, buffers and random numbers at the end.
std::vector<Tensor> TwoUpdates(const TrainConfig& config) {
  Model model = MakeModel();
  ForwardPass pass(&model, config, at::kCPU);
  auto reducer = GradientReducer::Create(Named(model.Parameters()), nullptr, {});
  EXPECT_TRUE(reducer.ok()) << reducer.status();
  torch::manual_seed(5);
  const Tensor input = torch::randn({4, 2, 9, 9});
  const Tensor targets = torch::randint(0, 6, {4}, at::kLong);
  std::vector<Tensor> result;
  for (int step = 0; step < 2; ++step) {
    pass.set_loss_weights(LossWeights::OfSizes({4, 4}));
    for (int micro = 0; micro < 2; ++micro) {
      (*reducer)->Prepare(micro == 1);
      const Tensor output = pass.Forward(input, 0, model.size());
      result.push_back(output.detach());
      pass.WeightedLoss(output, targets, micro).backward();
      const absl::Status status = (*reducer)->Finish();
      EXPECT_TRUE(status.ok()) << status;
    }
    for (const NamedTensor& parameter : model.Parameters()) {
      result.push_back(parameter.tensor.grad().clone());
    }
  }
  for (const NamedTensor& buffer : model.Buffers()) result.push_back(buffer.tensor);
  result.push_back(torch::randn({8}));
  return result;
}

// Bit for bit, each hook of the reducer once (it would say so), tied weights, dropout, buffers;
// TR35 with autocast.
TEST(Recompute, ChangesNoBit) {
  for (const char* amp : {"off", "bf16"}) {
    const std::vector<Tensor> plain = TwoUpdates(Config(amp, "none"));
    const std::vector<Tensor> again = TwoUpdates(Config(amp, "blocks"));
    ASSERT_EQ(plain.size(), again.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(plain[i].scalar_type(), again[i].scalar_type()) << amp << " " << i;
      EXPECT_TRUE(at::equal(plain[i], again[i])) << amp << " " << i;
    }
  }
}

// Bytes in use by tensors of this thread, and their peak, as LibTorch reports them to a profiler.
class MemoryMeter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*pointer*/, int64_t bytes, size_t /*total_allocated*/,
                         size_t /*total_reserved*/, at::Device /*device*/) override {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

TEST(Recompute, TheActivationsOfOneBlockExistAtATime) {
  at::set_num_threads(1);
  int64_t peaks[2];
  for (int i = 0; i < 2; ++i) {
    Model model = MakeModel(/*blocks=*/12);
    ForwardPass pass(&model, Config("off", i == 0 ? "none" : "blocks"), at::kCPU);
    const Tensor input = torch::randn({8, 2, 32, 32});
    const Tensor targets = torch::zeros({8}, at::kLong);
    const auto meter = std::make_shared<MemoryMeter>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    pass.set_loss_weights(LossWeights::OfSizes({8}));
    pass.WeightedLoss(pass.Forward(input, 0, model.size()), targets, 0).backward();
    peaks[i] = meter->peak();
  }
  EXPECT_GT(peaks[0], 12 * 8 * 6 * 32 * 32 * 4) << "an output of each block at least";
  EXPECT_LT(peaks[1], peaks[0] / 2) << "of " << peaks[0];
}

// A parameter of another block, used behind its back.
class Thief : public Block {
 public:
  explicit Thief(Tensor weight) : weight_(std::move(weight)) {
    register_parameter("own", at::zeros({1}));
  }
  Tensor forward(const Tensor& input) override { return input * weight_.sum() + parameters()[0]; }

 private:
  Tensor weight_;
};

class InPlace : public Block {
 public:
  InPlace() { register_parameter("own", at::ones({1})); }
  Tensor forward(const Tensor& input) override {
    Tensor same = input;
    return same.mul_(2) * parameters()[0];
  }
};

// Counts its forwards in a buffer, and gives what no gradient flows through.
class Counter : public Block {
 public:
  Counter() : count_(register_buffer("count", at::zeros({1}))) {
    register_parameter("own", at::ones({1}));
  }
  Tensor forward(const Tensor& input) override {
    count_.add_(1);
    return input.detach() + 1;
  }

 private:
  Tensor count_;
};

TEST(Recompute, BuffersMoveOnceWhereNoGradientFlows) {
  const auto counter = std::make_shared<Counter>();
  Model model({{"a", std::make_shared<NoisyBlock>(2, 6)},
               {"b", counter},
               {"c", std::make_shared<NoisyBlock>(6, 6)}},
              MakeCrossEntropy(0));
  ForwardPass pass(&model, Config("off", "blocks"), at::kCPU);
  pass.Forward(torch::ones({2, 2, 4, 4}), 0, model.size()).sum().backward();
  EXPECT_EQ(counter->buffers()[0].item<float>(), 1);
}

std::string Complaint(std::vector<NamedBlock> blocks) {
  Model model(std::move(blocks), MakeCrossEntropy(0));
  ForwardPass pass(&model, Config("off", "blocks"), at::kCPU);
  try {
    pass.Forward(torch::ones({2, 2, 4, 4}), 0, model.size()).sum().backward();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(Recompute, BlocksThatCannotBeRunAgainAreNamed) {
  const auto first = std::make_shared<NoisyBlock>(2, 6);
  const auto last = std::make_shared<NoisyBlock>(6, 6);
  EXPECT_THAT(
      Complaint(
          {{"a", first}, {"b", std::make_shared<Thief>(first->parameters()[0])}, {"c", last}}),
      HasSubstr("block 'b' of the model uses a parameter that is not registered in it"));
  EXPECT_THAT(Complaint({{"a", first}, {"b", std::make_shared<InPlace>()}, {"c", last}}),
              HasSubstr("block 'b' of the model changes its input in place"));
}

TEST(Autocast, ComputesIn16BitsAndGivesLossesAndGradientsIn32) {
  Model model = MakeModel();
  model.Train(false);
  const Tensor input = torch::randn({4, 2, 9, 9});
  ForwardPass plain(&model, Config("off", "none"), at::kCPU);
  const Tensor exact = plain.Evaluate(input);
  for (const char* amp : {"bf16", "fp16"}) {
    ForwardPass pass(&model, Config(amp, "none"), at::kCPU);
    const Tensor output = pass.Forward(input, 0, model.size());
    EXPECT_EQ(output.scalar_type(), std::string(amp) == "bf16" ? at::kBFloat16 : at::kHalf);
    EXPECT_EQ(pass.Evaluate(input).scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(pass.Evaluate(input), exact, 0.05, 0.05)) << amp;
    EXPECT_FALSE(at::equal(pass.Evaluate(input), exact)) << amp << " computes as evaluation, too";
    const Tensor loss = pass.Loss(output, torch::zeros({4}, at::kLong));
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    loss.backward();
    EXPECT_EQ(model.Parameters()[0].tensor.grad().scalar_type(), at::kFloat);
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  }
}

// The casted weights are of the weights before the update.
TEST(Autocast, WeightsAreCastAnewAfterAnUpdate) {
  Model model = MakeModel();
  model.Train(false);
  ForwardPass pass(&model, Config("bf16", "none"), at::kCPU);
  const Tensor input = torch::randn({4, 2, 9, 9});
  const Tensor before = pass.Forward(input, 0, model.size()).detach();
  {
    const at::NoGradGuard no_grad;
    for (const NamedTensor& parameter : model.Parameters()) Tensor(parameter.tensor).mul_(2);
  }
  EXPECT_FALSE(at::equal(pass.Forward(input, 0, model.size()).detach(), before));
}

TEST(Autocast, ScopesNestAndLeaveEverythingAsItWas) {
  const AutocastScope outer({.enabled = true, .dtype = at::kHalf, .device = at::kCPU});
  {
    const AutocastScope inner({.enabled = false});
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  }
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
}

}  // namespace
}  // namespace ddprun
