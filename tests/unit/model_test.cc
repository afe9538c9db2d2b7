// Models, optimizers, plans and seeds against PyTorch's results and against their own rules.
// against their own rules.
#include "worker/model/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "common/config/key_table.h"
#include "worker/parallel/seeds.h"
#include "worker/trainer/optimizer.h"
#include "worker/trainer/plan.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;

void Seed(uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(seed);
}

// As for grey images of 28 × 28 pixels in 10 classes.
absl::StatusOr<Model> MakeModel(const std::string& name) {
  TrainConfig config;
  config.model_name = name;
  return CreateModel({config, {.input_shape = {1, 28, 28}, .classes = 10}});
}

TEST(ModelTest, TheSupportedModelsOfTheConfigurationAreThoseOfTheRegistry) {
  std::vector<std::string> supported;
  for (const auto& name : FindKey("model", "name")->supported) supported.emplace_back(name);
  EXPECT_EQ(supported, ModelNames());
  EXPECT_THAT(MakeModel("resnet99").status().message(), HasSubstr("simple_cnn"));
}

TEST(ModelTest, SimpleCnnHasPyTorchsNamesAndShapes) {  // MA6
  const Model model = *MakeModel("simple_cnn");
  std::vector<std::string> names;
  int64_t numbers = 0;
  for (const auto& item : model.Parameters()) {
    names.push_back(item.name);
    numbers += item.tensor.numel();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"conv.weight", "conv.bias", "fc.weight", "fc.bias"}));
  EXPECT_EQ(numbers, 32 * 9 + 32 + 10 * 32 * 13 * 13 + 10);
}

TEST(ModelTest, CuttingTheBlocksAnywhereGivesTheSameResult) {
  Model model = *MakeModel("simple_cnn");
  const at::Tensor input = at::rand({3, 1, 28, 28});
  const at::Tensor whole = model.Forward(input, 0, 2);
  EXPECT_TRUE(at::equal(whole, model.Forward(model.Forward(input, 0, 1), 1, 2)));
  EXPECT_EQ(whole.sizes().vec(), (std::vector<int64_t>{3, 10}));
}

// Ten steps of Adam on fixed inputs, against losses that PyTorch 2.11 gave for the same network,
// seed and inputs:
//   torch.manual_seed(1024); m = Net()  # conv, fc
//   x[i, 0, r, c] = ((i * 31 + r * 7 + c * 3) % 17) / 17; y[i] = i % 10; 16 samples; Adam(lr=0.001)
// The tolerance allows for other summation orders in the kernels of other processors.
TEST(ModelTest, TenStepsGiveThePyTorchLosses) {
  constexpr double kLosses[] = {2.313774, 2.54055,  2.268431, 2.163488, 2.090313,
                                2.024529, 1.918754, 1.837259, 1.770377, 1.687363};
  Seed(1024);
  Model model = *MakeModel("simple_cnn");
  TrainConfig config;
  const auto optimizer = *CreateOptimizer(config, model.Parameters());
  at::Tensor x = at::empty({16, 1, 28, 28});
  for (int64_t i = 0; i < x.numel(); ++i) {
    const int64_t sample = i / 784, row = i % 784 / 28, column = i % 28;
    x.data_ptr<float>()[i] = static_cast<float>((sample * 31 + row * 7 + column * 3) % 17) / 17.0F;
  }
  const at::Tensor y = at::arange(16, at::kLong).remainder(10);
  for (double expected : kLosses) {
    for (const auto& item : model.Parameters()) item.tensor.mutable_grad() = at::Tensor();
    const at::Tensor loss = at::cross_entropy_loss(model.Forward(x, 0, 2), y);
    loss.backward();
    optimizer->Step(config.train_lr);
    EXPECT_NEAR(loss.item<double>(), expected, 1e-4 * expected + 1e-5);
  }
}

// TR4: a parameter that no rank used keeps its value, in spite of weight decay and momentum.
TEST(OptimizerTest, AnUnusedParameterIsLeftAloneWholly) {
  for (const char* kind : {"adam", "adamw", "sgd"}) {
    TrainConfig config;
    config.train_optimizer = kind;
    config.train_weight_decay = 0.1;
    if (config.train_optimizer == "sgd") config.train_momentum = 0.9;
    const std::vector<NamedTensor> parameters = {{"a", at::ones({3}).requires_grad_()},
                                                 {"b", at::ones({2}).requires_grad_()}};
    const auto optimizer = *CreateOptimizer(config, parameters);
    for (const auto& item : parameters) item.tensor.mutable_grad() = at::ones_like(item.tensor);
    optimizer->Step(0.1);
    const at::Tensor a = parameters[0].tensor.detach().clone();
    const at::Tensor b = parameters[1].tensor.detach().clone();
    parameters[1].tensor.mutable_grad() = at::Tensor();
    optimizer->Step(0.1);
    EXPECT_FALSE(at::equal(parameters[0].tensor, a)) << kind;
    EXPECT_TRUE(at::equal(parameters[1].tensor, b)) << kind;
  }
}

// Three steps of each optimizer on one number, against its formula worked out in double.
TEST(OptimizerTest, SgdWithMomentumFollowsItsFormula) {
  TrainConfig config;
  config.train_optimizer = "sgd";
  config.train_momentum = 0.9;
  config.train_weight_decay = 0.01;
  const std::vector<NamedTensor> parameters = {{"p", at::full({1}, 2.0F).requires_grad_()}};
  const auto optimizer = *CreateOptimizer(config, parameters);
  double p = 2.0, momentum = 0;
  for (double gradient : {0.5, -1.0, 0.25}) {
    parameters[0].tensor.mutable_grad() = at::full({1}, gradient);
    optimizer->Step(0.1);
    momentum = 0.9 * momentum + gradient + 0.01 * p;
    p -= 0.1 * momentum;
    EXPECT_NEAR(parameters[0].tensor.item<double>(), p, 1e-6);
  }
}

TEST(OptimizerTest, AdamAndAdamWFollowTheirFormulas) {
  for (bool decoupled : {false, true}) {
    TrainConfig config;
    config.train_optimizer = decoupled ? "adamw" : "adam";
    config.train_weight_decay = 0.05;
    const std::vector<NamedTensor> parameters = {{"p", at::full({1}, 2.0F).requires_grad_()}};
    const auto optimizer = *CreateOptimizer(config, parameters);
    double p = 2.0, m = 0, v = 0, b1 = 1, b2 = 1;
    for (double gradient : {0.5, -1.0, 0.25}) {
      parameters[0].tensor.mutable_grad() = at::full({1}, gradient);
      optimizer->Step(0.1);
      double g = gradient;
      if (decoupled) {
        p *= 1 - 0.1 * 0.05;
      } else {
        g += 0.05 * p;
      }
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      b1 *= 0.9;
      b2 *= 0.999;
      p -= 0.1 * (m / (1 - b1)) / (std::sqrt(v / (1 - b2)) + 1e-8);
      EXPECT_NEAR(parameters[0].tensor.item<double>(), p, 1e-5);
    }
  }
}

TEST(PlanTest, DataParallelIsOneStageWithOneReduction) {
  EXPECT_EQ(PlanText(PlanDataParallel(2, 1)), "load0 forward0[0,2) loss0 backward0! reduce update");
  EXPECT_EQ(
      PlanText(PlanDataParallel(3, 2)),
      "load0 forward0[0,3) loss0 backward0 load1 forward1[0,3) loss1 backward1! reduce update");
}

TEST(SeedsTest, EveryPurposeRankThreadAndEpochHasItsOwnSeed) {  // TR26, MA14
  std::set<uint64_t> seeds;
  for (int64_t a = 0; a < 10; ++a) {
    for (int64_t b = 0; b < 10; ++b) {
      for (auto purpose :
           {SeedPurpose::kRank, SeedPurpose::kRankResumed, SeedPurpose::kAugmentation}) {
        seeds.insert(DeriveSeed(1024, purpose, {a, b, 0}));
        seeds.insert(DeriveSeed(1025, purpose, {a, b, 1}));
      }
    }
  }
  EXPECT_EQ(seeds.size(), 600u);
  EXPECT_EQ(DeriveSeed(1, SeedPurpose::kRank, {1, 2, 3}),
            DeriveSeed(1, SeedPurpose::kRank, {1, 2, 3}));
}

}  // namespace
}  // namespace ddprun
