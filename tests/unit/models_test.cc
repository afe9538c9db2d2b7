// The rules of the models: names and shapes, cutting anywhere, bad input.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "common/config/token_sizes.h"
#include "tests/unit/models_files.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/model/layers/batch_norm.h"
#include "worker/model/model.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void SeedModels(uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(seed);
}

SampleSpec Images(int64_t side) {
  return {.input_shape = {3, side, side}, .classes = 10};
}

SampleSpec Tokens(int64_t length, int64_t vocabulary) {
  return {.input_shape = {length},
          .input_type = InputType::kInt64,
          .target_shape = {length},
          .classes = vocabulary};
}

TrainConfig Config(const std::string& name) {
  TrainConfig config;
  config.model_name = name;
  return config;
}

TrainConfig SmallTransformer(const std::string& name) {
  TrainConfig config = Config(name);
  config.model_vocab_size = 40;
  config.model_d_model = 16;
  config.model_heads = 2;
  config.model_layers = 3;
  config.model_sequence_length = 12;
  return config;
}

std::string ErrorOf(const TrainConfig& config, const SampleSpec& data) {
  const absl::StatusOr<Model> model = CreateModel({config, data});
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << model.status();
  return std::string(model.status().message());
}

std::map<std::string, std::vector<int64_t>> Shapes(const std::vector<NamedTensor>& tensors) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const NamedTensor& item : tensors) shapes[item.name] = item.tensor.sizes().vec();
  return shapes;
}

int64_t Numbers(const Model& model) {
  int64_t sum = 0;
  for (const NamedTensor& item : model.Parameters()) sum += item.tensor.numel();
  return sum;
}

TEST(ModelsTest, ResNetsHaveTheNamesAndShapesOfTorchvision) {
  TrainConfig config = Config("resnet50");
  config.model_classes = 1000;
  const Model large = *CreateModel({config, Images(224)});
  EXPECT_EQ(Numbers(large), 25557032);  // what torchvision's documentation says of its weights
  auto shapes = Shapes(large.Parameters());
  EXPECT_EQ(shapes.size(), 161u);
  EXPECT_EQ(shapes["conv1.weight"], (std::vector<int64_t>{64, 3, 7, 7}));
  EXPECT_EQ(shapes["layer4.0.downsample.0.weight"], (std::vector<int64_t>{2048, 1024, 1, 1}));
  EXPECT_EQ(shapes["layer3.5.conv2.weight"], (std::vector<int64_t>{256, 256, 3, 3}));
  EXPECT_EQ(shapes["fc.bias"], (std::vector<int64_t>{1000}));
  config.model_name = "resnet18";
  EXPECT_EQ(Numbers(*CreateModel({config, Images(224)})), 11689512);
  auto buffers = Shapes(large.Buffers());
  EXPECT_EQ(buffers.size(), 3u * 53u);
  EXPECT_EQ(buffers["layer1.0.downsample.1.running_var"], (std::vector<int64_t>{256}));
  EXPECT_EQ(buffers["bn1.num_batches_tracked"], (std::vector<int64_t>{}));
}

TEST(ModelsTest, SmallImagesGetTheStemForSmallImages) {
  const auto stem = [](const std::string& wanted, int64_t side) {
    TrainConfig config = Config("resnet18");
    config.model_stem = wanted;
    return Shapes(CreateModel({config, Images(side)})->Parameters())["conv1.weight"].back();
  };
  EXPECT_EQ(stem("auto", 64), 3);
  EXPECT_EQ(stem("auto", 65), 7);
  EXPECT_EQ(stem("cifar", 224), 3);
  EXPECT_EQ(stem("imagenet", 32), 7);
}

TEST(ModelsTest, BertAndGptHaveTheSizesOfTheirDefaults) {
  // All at once would be half a billion numbers: first one layer as wide as they are, then all
  // layers.
  const auto make = [](const std::string& name, int64_t layers, int64_t width) {
    TrainConfig config = Config(name);
    config.model_vocab_size = 100;
    config.model_layers = layers;
    config.model_d_model = width;
    absl::StatusOr<Model> model = CreateModel({config, Tokens(512, 100)});
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  };
  const int64_t d = 1024;
  const int64_t layer = 12 * d * d + 13 * d;  // the same sum in both
  EXPECT_EQ(Numbers(make("bert", 1, 0)), (100 + 512 + 2) * d + layer + 100 * (d + 1));
  const int64_t e = 768;
  EXPECT_EQ(Numbers(make("gpt", 1, 0)), (100 + 1024 + 2) * e + 12 * e * e + 13 * e);
  EXPECT_EQ(make("bert", 0, 16).size(), 1 + 24 + 1);
  EXPECT_EQ(make("gpt", 0, 12).size(), 1 + 12 + 1);
}

// MA5, and what a pipeline relies on.
TEST(ModelsTest, CuttingAnywhereGivesTheSame) {
  struct Case {
    TrainConfig config;
    SampleSpec data;
  };
  for (const Case& one : {Case{Config("resnet18"), Images(8)}, Case{Config("resnet50"), Images(8)},
                          Case{SmallTransformer("bert"), Tokens(12, 40)},
                          Case{SmallTransformer("gpt"), Tokens(12, 40)}}) {
    at::set_num_threads(1);  // threads that wait for each other are slow on a busy machine
    SeedModels(5);
    Model model = *CreateModel({one.config, one.data});
    model.Train(false);
    const at::NoGradGuard no_grad;
    std::vector<int64_t> shape = one.data.input_shape;
    shape.insert(shape.begin(), 2);
    const at::Tensor input = one.data.input_type == InputType::kInt64
                                 ? at::randint(40, shape, at::kLong)
                                 : at::rand(shape);
    const at::Tensor whole = model.Forward(input, 0, model.size());
    for (int cut = 1; cut < model.size(); ++cut) {
      const at::Tensor first = model.Forward(input, 0, cut);
      EXPECT_TRUE(at::equal(whole, model.Forward(first, cut, model.size())))
          << one.config.model_name << " cut at " << cut;
    }
  }
}

TEST(ModelsTest, TheTiedEmbeddingIsOneParameterWithTheGradientsOfBothPlaces) {
  Model model = *CreateModel({SmallTransformer("gpt"), Tokens(12, 40)});
  std::set<std::string> names;
  for (const NamedTensor& item : model.Parameters()) {
    EXPECT_TRUE(names.insert(item.name).second) << item.name;
  }
  EXPECT_TRUE(names.contains("wte.weight"));
  const at::Tensor tokens = at::zeros({1, 12}, at::kLong);
  model.Forward(tokens, 0, model.size()).sum().backward();
  const at::Tensor gradient = model.Parameters().front().tensor.grad();
  ASSERT_EQ(gradient.sizes().vec(), (std::vector<int64_t>{40, 16}));
  EXPECT_GT(gradient[0].abs().sum().item<float>(), 0);   // as a word that stands there
  EXPECT_GT(gradient[39].abs().sum().item<float>(), 0);  // as a word that might have come
}

TEST(ModelsTest, GptDoesNotSeeWhatComesLaterAndBertDoes) {
  for (const auto& [name, sees] : {std::pair("gpt", false), std::pair("bert", true)}) {
    Model model = *CreateModel({SmallTransformer(name), Tokens(12, 40)});
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = at::arange(12, at::kLong).unsqueeze(0);
    at::Tensor changed = tokens.clone();
    changed[0][11] = 33;
    const at::Tensor before = model.Forward(tokens, 0, model.size()).narrow(1, 0, 11);
    const at::Tensor after = model.Forward(changed, 0, model.size()).narrow(1, 0, 11);
    EXPECT_EQ(!at::allclose(before, after, 1e-6, 1e-7), sees) << name;
  }
}

TEST(ModelsTest, DropoutComesFromTheGeneratorAndOnlyInTraining) {
  for (const char* name : {"gpt", "bert"}) {
    TrainConfig config = SmallTransformer(name);
    config.model_dropout = 0.3;
    Model model = *CreateModel({config, Tokens(12, 40)});
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = at::arange(12, at::kLong).unsqueeze(0);
    const auto run = [&] { return model.Forward(tokens, 0, model.size()); };
    model.Train(true);
    SeedModels(1);
    const at::Tensor first = run();
    EXPECT_FALSE(at::equal(first, run()));
    SeedModels(1);
    EXPECT_TRUE(at::equal(first, run()));
    model.Train(false);
    EXPECT_TRUE(at::equal(run(), run()));
  }
}

TEST(ModelsTest, SizesThatDoNotFitAreNamedWithTheirKey) {
  TrainConfig config = SmallTransformer("bert");
  config.model_heads = 3;
  EXPECT_THAT(ErrorOf(config, Tokens(12, 40)),
              AllOf(HasSubstr("[model] heads"), HasSubstr("d_model = 16")));
  config = SmallTransformer("gpt");
  EXPECT_THAT(ErrorOf(config, Tokens(12, 41)),
              AllOf(HasSubstr("[model] vocab_size: is 40"), HasSubstr("at least 41")));
  EXPECT_THAT(ErrorOf(config, Tokens(13, 40)),
              AllOf(HasSubstr("[model] sequence_length: is 12"), HasSubstr("13 tokens")));
  config = Config("resnet18");
  config.model_classes = 9;
  EXPECT_THAT(ErrorOf(config, Images(32)), HasSubstr("[model] classes: is 9, the data have 10"));
}

TEST(ModelsTest, DataOfAnotherKindAreAnErrorThatSaysWhatTheModelTakes) {
  TrainConfig config = Config("resnet50");
  config.data_kind = "tokens";
  EXPECT_THAT(ErrorOf(config, Tokens(12, 40)), AllOf(HasSubstr("resnet50 takes images"),
                                                     HasSubstr("\"tokens\" gives tokens of 12")));
  config = SmallTransformer("bert");
  config.data_kind = "cifar10";
  EXPECT_THAT(ErrorOf(config, Images(32)),
              AllOf(HasSubstr("bert takes tokens"), HasSubstr("\"cifar10\"")));
}

TEST(ModelsTest, BatchNormOfOneValueAChannelIsAnErrorInTrainingAlone) {
  BatchNorm2d norm(4);
  norm.train(false);
  EXPECT_EQ(norm.forward(at::ones({1, 4, 1, 1})).numel(), 4);
  norm.train(true);
  EXPECT_EQ(norm.forward(at::ones({1, 4, 2, 1})).numel(), 8);
  try {
    norm.forward(at::ones({1, 4, 1, 1}));
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("batch_size"));
  }
}

// A state_dict of Python has the tied weight under both names, other files under one of them.
TEST(ModelsTest, TheTiedWeightOfGptMayStandUnderBothNames) {
  const TrainConfig config = SmallTransformer("gpt");
  const auto make = [&] { return *CreateModel({config, Tokens(12, 40)}); };
  const Model from = make();
  const std::string path = ::testing::TempDir() + "tied.safetensors";
  const auto load = [&](const std::vector<NamedTensor>& tensors, const Model& to) {
    WriteTensors(path, tensors);
    const absl::Status status = LoadInitialWeights(path, "", to);
    std::filesystem::remove(path);
    return status;
  };
  std::vector<NamedTensor> plain = from.Parameters();
  const auto wte = std::find_if(plain.begin(), plain.end(),
                                [](const NamedTensor& item) { return item.name == "wte.weight"; });
  ASSERT_NE(wte, plain.end());
  std::vector<NamedTensor> both = plain;
  both.push_back({"lm_head.weight", wte->tensor.detach().clone()});
  std::vector<NamedTensor> other = plain;
  other[static_cast<size_t>(wte - plain.begin())].name = "lm_head.weight";
  for (const std::vector<NamedTensor>& tensors : {plain, both, other}) {
    const Model to = make();
    ASSERT_FALSE(at::equal(to.Parameters()[0].tensor, from.Parameters()[0].tensor));
    const absl::Status status = load(tensors, to);
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < from.Parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(from.Parameters()[i].tensor, to.Parameters()[i].tensor));
    }
  }
  // −0 and 0 are equal numbers, and other bits.
  {
    const at::NoGradGuard no_grad;
    wte->tensor[0][0] = 0;
    both.back().tensor.copy_(wte->tensor);
    both.back().tensor[0][0] = -0.0;
  }
  const absl::Status status = load(both, make());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("[model] weights: " + path),
            HasSubstr("\"lm_head.weight\" is not equal to \"wte.weight\""), HasSubstr("tied")));
}

TEST(ModelsTest, TokenSizesAreTheConfigurationsOrTheModels) {
  EXPECT_EQ(ResolveTokenSizes(Config("gpt")).sequence_length, 1024);
  EXPECT_EQ(ResolveTokenSizes(Config("bert")).vocab_size, 30522);
  EXPECT_EQ(ResolveTokenSizes(SmallTransformer("gpt")).vocab_size, 40);
  EXPECT_EQ(ResolveTokenSizes(Config("resnet18")).vocab_size, 0);
}

}  // namespace
}  // namespace ddprun
