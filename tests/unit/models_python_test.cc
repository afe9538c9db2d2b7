// The models against the same networks as PyTorch modules (tests/python/reference_models.py): one
// step of each is written down here, and tests/python/compare_models.py does it again.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/unit/models_files.h"
#include "worker/model/model.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kSeed = 77;

struct Case {
  std::string name;
  std::string python;  // options of the module's constructor, JSON
  SampleSpec data;
  int64_t batch = 4;
  TrainConfig config;
};

SampleSpec Images(int64_t channels, int64_t side, int64_t classes) {
  return {.input_shape = {channels, side, side}, .classes = classes};
}

SampleSpec Tokens(int64_t length, int64_t vocabulary) {
  return {.input_shape = {length},
          .input_type = InputType::kInt64,
          .target_shape = {length},
          .classes = vocabulary,
          .ignores = true};
}

TrainConfig TransformerConfig() {
  TrainConfig config;
  config.model_vocab_size = 61;
  config.model_d_model = 32;
  config.model_heads = 4;
  config.model_layers = 2;
  config.model_d_ff = 48;
  config.model_sequence_length = 20;
  return config;
}

std::vector<Case> Cases() {
  TrainConfig wide_stem;
  wide_stem.model_stem = "imagenet";
  TrainConfig more_classes;
  more_classes.model_classes = 12;
  more_classes.model_stem = "imagenet";
  const std::string sizes =
      R"(, "vocab_size": 61, "d_model": 32, "heads": 4, "layers": 2, "d_ff": 48, "sequence_length": 20)";
  return {
      {"simple_cnn", "", Images(1, 28, 10), 4, {}},
      {"resnet18", R"(, "classes": 10, "stem": "cifar")", Images(3, 17, 10), 6, {}},
      {"resnet18", R"(, "classes": 12, "stem": "imagenet", "channels": 1)", Images(1, 33, 10), 4,
       more_classes},
      {"resnet50", R"(, "classes": 7, "stem": "imagenet")", Images(3, 33, 7), 3, wide_stem},
      {"bert", sizes, Tokens(16, 61), 3, TransformerConfig()},
      {"gpt", sizes, Tokens(20, 50), 3, TransformerConfig()},
  };
}

void Add(const std::string& prefix, const std::vector<NamedTensor>& from,
         std::vector<NamedTensor>* to) {
  for (const NamedTensor& item : from) {
    to->push_back({absl::StrCat(prefix, item.name), item.tensor.detach().clone()});
  }
}

// In double precision both sides compute the same but for the last bits. In single precision they
// would not: a ReLU whose input is as good as zero passes a gradient on one side and none on the
// other.
void ToDouble(const Model& model) {
  const at::NoGradGuard no_grad;
  for (const auto& tensors : {model.Parameters(), model.Buffers()}) {
    for (const NamedTensor& item : tensors) {
      if (item.tensor.is_floating_point()) item.tensor.set_data(item.tensor.to(at::kDouble));
    }
  }
}

// Initial weights, one training step's output, loss and gradients, buffers after it, and the output
// of an evaluation.
void WriteStep(const std::string& path, Case& one) {
  one.config.model_name = one.name;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(kSeed);
  absl::StatusOr<Model> model = CreateModel({one.config, one.data});
  ASSERT_TRUE(model.ok()) << model.status();
  model->Train(true);
  std::vector<NamedTensor> tensors;
  Add("parameter/", model->Parameters(), &tensors);
  Add("buffer/", model->Buffers(), &tensors);
  ToDouble(*model);
  std::vector<int64_t> shape = one.data.input_shape;
  shape.insert(shape.begin(), one.batch);
  std::vector<int64_t> target_shape = one.data.target_shape;
  target_shape.insert(target_shape.begin(), one.batch);
  const bool tokens = one.data.input_type == InputType::kInt64;
  const at::Tensor input =
      tokens ? at::randint(one.data.classes, shape, at::kLong) : at::randn(shape, at::kDouble);
  at::Tensor targets = at::randint(one.data.classes, target_shape, at::kLong);
  if (tokens) targets.masked_fill_(at::rand(target_shape).lt(0.5), kIgnoredTarget);
  const at::Tensor output = model->Forward(input, 0, model->size());
  const at::Tensor loss = model->loss().Compute(output, targets);
  loss.backward();
  tensors.push_back({"input", input});
  tensors.push_back({"targets", targets});
  tensors.push_back({"output", output.detach()});
  tensors.push_back({"loss", loss.detach()});
  for (const NamedTensor& item : model->Parameters()) {
    ASSERT_TRUE(item.tensor.grad().defined()) << item.name;
    tensors.push_back({"gradient/" + item.name, item.tensor.grad()});
  }
  Add("moved/", model->Buffers(), &tensors);
  model->Train(false);
  tensors.push_back({"evaluated", model->Forward(input, 0, model->size()).detach()});
  WriteTensors(path, tensors,
               {{"options", absl::StrCat(R"({"name": ")", one.name, "\"", one.python, "}")},
                {"seed", absl::StrCat(kSeed)}});
}

TEST(ModelsPythonTest, InitialWeightsOutputsAndGradientsAreThoseOfPyTorchsModules) {
  at::set_num_threads(1);
  const std::string dir = ::testing::TempDir() + "/models_python";
  std::filesystem::create_directories(dir);
  std::string files;
  int number = 0;
  for (Case& one : Cases()) {
    const std::string path = absl::StrCat(dir, "/", number++, "-", one.name, ".safetensors");
    WriteStep(path, one);
    absl::StrAppend(&files, " ", path);
  }
  const std::string same = RunPython("compare_models.py", files);
  EXPECT_THAT(same, StartsWith("exit 0\n"));
  EXPECT_THAT(same, HasSubstr(absl::StrCat(number, " files agree")));
  // The comparison can fail: another seed draws other weights.
  const std::string other = RunPython("compare_models.py", absl::StrCat("--seed 78", files));
  EXPECT_THAT(other, StartsWith("exit 1\n"));
  EXPECT_THAT(other, HasSubstr("initial fc.weight differs"));
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace ddprun
