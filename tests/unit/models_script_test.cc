// Model torchscript with modules that Python saves here, and [model] weights: training, export, bad
// files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/client_keeper.h"
#include "tests/unit/gloo_ranks.h"
#include "tests/unit/models_files.h"
#include "tests/unit/trainer_harness.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/model/layers/script_digest.h"
#include "worker/model/layers/script_module.h"
#include "worker/trainer/export_torchscript.h"
#include "worker/trainer/plan_modes.h"
#include "worker/trainer/shared_buffers.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const SampleSpec kImages = {.input_shape = {1, 28, 28}, .classes = 10};

class ScriptModelTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    std::filesystem::create_directories(dir());
    ASSERT_THAT(RunPython("make_script_modules.py", dir()), StartsWith("exit 0\n"));
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(dir()); }
  static std::string dir() { return ::testing::TempDir() + "/models_script"; }
  static std::string File(const std::string& name) { return absl::StrCat(dir(), "/", name, ".pt"); }
  static TrainConfig Config(const std::string& name) {
    TrainConfig config;
    config.model_name = "torchscript";
    config.model_file = File(name);
    return config;
  }
  static std::string ErrorOf(const std::string& name, const SampleSpec& data = kImages) {
    const TrainConfig config = Config(name);
    const absl::StatusOr<Model> model = CreateModel({config, data});
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << model.status();
    std::string message(model.status().message());
    EXPECT_THAT(message, HasSubstr(absl::StrCat("[model] file: ", config.model_file)));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    return message;
  }
};

TEST_F(ScriptModelTest, ParametersAreTrainedFrozenOnesAndBuffersAreNot) {
  const TrainConfig config = Config("Small");
  const Model model = *CreateModel({config, kImages});
  std::vector<std::string> names;
  for (const NamedTensor& item : model.Parameters()) names.push_back(item.name);
  // second.weight is first.weight again.
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(
                         "body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias",
                         "first.weight", "first.bias", "second.bias", "fc.weight", "fc.bias"));
  names.clear();
  for (const NamedTensor& item : model.Buffers()) names.push_back(item.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("body.1.running_mean", "body.1.running_var",
                                                     "body.1.num_batches_tracked", "frozen.weight",
                                                     "frozen.bias"));
}

TEST_F(ScriptModelTest, TrainingAndEvaluationAreTheModulesOwn) {
  const TrainConfig config = Config("Small");
  Model model = *CreateModel({config, kImages});
  const at::NoGradGuard no_grad;
  const at::Tensor input = at::rand({4, 1, 28, 28});
  model.Train(false);
  EXPECT_TRUE(at::equal(model.Forward(input, 0, 1), model.Forward(input, 0, 1)));
  model.Train(true);
  EXPECT_FALSE(at::equal(model.Forward(input, 0, 1), model.Forward(input, 0, 1)));  // dropout
}

TEST_F(ScriptModelTest, AnExportedLossIsUsed) {
  const TrainConfig config = Config("OwnLoss");
  Model model = *CreateModel({config, kImages});
  const at::Tensor output = at::zeros({5, 10});
  EXPECT_NEAR(model.loss().Compute(output, at::zeros({5}, at::kLong)).item<double>(), 0.1, 1e-6);
  EXPECT_TRUE(model.loss().classifies());
  TrainConfig smoothing = config;
  smoothing.train_label_smoothing = 0.1;
  EXPECT_THAT(CreateModel({smoothing, kImages}).status().message(),
              HasSubstr("[train] label_smoothing"));
}

TEST_F(ScriptModelTest, ALossWithoutClassesCannotBeJudgedByAccuracy) {
  TrainConfig config = Config("Regression");
  for (const char* metric : {"auto", "loss"}) {
    config.train_best_metric = metric;
    EXPECT_TRUE(CreateModel({config, kImages}).ok()) << metric;
  }
  config.train_best_metric = "accuracy";
  const absl::Status status = CreateModel({config, kImages}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("[train] best_metric: is \"accuracy\""));
  config = Config("OwnLoss");
  config.train_best_metric = "accuracy";
  EXPECT_TRUE(CreateModel({config, kImages}).ok());
}

// A tensor in a buffer's place would not be in checkpoints.
TEST_F(ScriptModelTest, AModuleThatReplacesABufferIsAnError) {
  EXPECT_THAT(ErrorOf("ReplacesAlways"), HasSubstr("forward replaces the buffer 'seen'"));
  const TrainConfig config = Config("ReplacesInTraining");
  absl::StatusOr<Model> model = CreateModel({config, kImages});
  ASSERT_TRUE(model.ok()) << model.status();
  const at::Tensor input = at::rand({4, 1, 28, 28});
  model->Train(true);
  std::string error;
  try {
    model->Forward(input, 0, 1);
  } catch (const c10::ValueError& thrown) {
    error = thrown.what_without_backtrace();
  }
  EXPECT_THAT(error, HasSubstr("[model] file: forward replaces the buffer 'seen'; change it in "
                               "place (seen.copy_("));
}

// TR6: a module's buffers come from rank 0 before each update; frozen weights stay equal anyway.
TEST_F(ScriptModelTest, RanksShareBuffersButNotFrozenWeights) {
  const auto results = RunOverGloo(2, [](Communicator& communicator) -> std::string {
    const TrainConfig config = Config("Small");
    const Model model = *CreateModel({config, kImages});
    const at::NoGradGuard no_grad;
    for (const NamedTensor& item : model.Buffers()) item.tensor.fill_(communicator.rank() + 1);
    SharedBuffers shared(model, &communicator);
    for (int use = 0; use < 2; ++use) {
      const absl::Status status = use == 0 ? shared.BeforeUpdate() : shared.BeforeUse();
      if (!status.ok()) return status.ToString();
      for (const NamedTensor& item : model.Buffers()) {
        const bool frozen = absl::StartsWith(item.name, "frozen.");
        const int expected = frozen ? communicator.rank() + 1 : 1;
        if (!item.tensor.eq(expected).all().item<bool>()) return item.name;
      }
    }
    return "";
  });
  EXPECT_THAT(results, ::testing::Each(""));
}

TEST_F(ScriptModelTest, AModuleMayCallItselfAnything) {
  EXPECT_TRUE(CreateModel({Config("NamedOtherwise"), kImages}).ok());
}

TEST_F(ScriptModelTest, ALossThatTeachesNothingIsAnErrorBeforeTheStart) {
  TemporaryFolder folder;
  WriteRandomData(folder.path(), 90, 20);
  TrainConfig config = Config("DetachedLoss");
  config.data_kind = "idx";
  config.data_dir = folder.path();
  config.data_batch_size = 4;
  config.train_epochs = 1;
  EXPECT_THAT(CheckJob(config, 1).message(),
              HasSubstr("its loss does not depend on any parameter that is trained"));
  config.model_file = File("Small");
  EXPECT_EQ(CheckJob(config, 1).message(), "");
}

TEST_F(ScriptModelTest, TheDigestIsThatOfTheFunctionNotOfItsWeights) {
  const auto digest = [](const std::string& name) { return *ScriptModuleDigest(File(name)); };
  EXPECT_EQ(digest("Scaled"), digest("ScaledAgain"));
  EXPECT_NE(digest("Scaled"), digest("ScaledMore"));
  EXPECT_NE(digest("Scaled"), digest("OtherCode"));
  EXPECT_THAT(ScriptModuleDigest(File("Missing")).status().message(),
              AllOf(HasSubstr("[model] file: "), HasSubstr(File("Missing"))));
}

TEST_F(ScriptModelTest, ModulesThatDoNotFitAreNamedWithTheReason) {
  EXPECT_THAT(ErrorOf("Missing"), HasSubstr("cannot be read: No such file"));
  std::ofstream(File("Text")) << "no module";
  EXPECT_THAT(ErrorOf("Text"),
              AllOf(HasSubstr("is no whole module that torch.jit.save wrote"),
                    HasSubstr("torch.jit.script(module).save"), Not(HasSubstr("miniz"))));
  std::ofstream(File("Empty")).flush();
  EXPECT_THAT(ErrorOf("Empty"), HasSubstr("is empty"));
  std::filesystem::create_directory(File("Folder"));
  EXPECT_THAT(ErrorOf("Folder"), HasSubstr("is not a regular file"));
  EXPECT_THAT(ErrorOf("NoParameters"), HasSubstr("no parameters to train"));
  EXPECT_THAT(ErrorOf("TwoInputs"), HasSubstr("forward takes 2 inputs (left, right)"));
  EXPECT_THAT(ErrorOf("OtherShape"),
              AllOf(HasSubstr("2 x 1 x 28 x 28 float32"), HasSubstr("mat1 and mat2 shapes")));
  EXPECT_THAT(ErrorOf("FewClasses"), AllOf(HasSubstr("output of 2 x 3"), HasSubstr("10 classes")));
  EXPECT_THAT(ErrorOf("MixesTheBatch"), HasSubstr("must stay the batch"));
  EXPECT_THAT(ErrorOf("Small", {.input_shape = {12},
                                .input_type = InputType::kInt64,
                                .target_shape = {12},
                                .classes = 10}),
              HasSubstr("forward fails on the data's 2 x 12 int64"));
  const TrainConfig traced = Config("Traced");
  EXPECT_TRUE(CreateModel({traced, kImages}).ok());
}

TEST_F(ScriptModelTest, ATrainedModuleIsOpenedByPythonWithTheTrainedWeights) {
  TrainConfig config = WriteRandomData(dir() + "/data", 64, 16);
  config.model_name = "torchscript";
  config.train_epochs = 0;
  config.train_steps = 4;
  config.checkpoint_every_steps = 0;
  for (const char* name : {"Small", "OwnLoss"}) {
    config.model_file = File(name);
    const std::string run = absl::StrCat(dir(), "/run-", name);
    std::filesystem::create_directories(run + "/checkpoints");
    const TrainOutcome outcome = Train({.config = config, .run_dir = run});
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    const std::string checkpoint = run + "/checkpoints/step-4";
    const std::string exported = run + "/module.pt";
    const absl::Status status = ExportTorchScript(checkpoint, exported, "");
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_THAT(RunPython("check_exported_module.py",
                          absl::StrCat(exported, " ", config.model_file, " ", checkpoint)),
                AllOf(StartsWith("exit 0\n"), HasSubstr("the exported module is the trained one")));
    // Into a module of another architecture: the differing names.
    EXPECT_THAT(ExportTorchScript(checkpoint, exported, File("FewClasses")).message(),
                AllOf(HasSubstr("tensor \"fc.weight\" is F32 [10, 16], expected F32 [3, 784]"),
                      HasSubstr("unexpected tensor \"body.0.weight\"")));
  }
}

TEST_F(ScriptModelTest, OnlyTorchscriptCheckpointsAreExported) {
  TrainConfig config = WriteRandomData(dir() + "/data", 64, 16);
  config.train_epochs = 0;
  config.train_steps = 1;
  const std::string run = dir() + "/run-cnn";
  std::filesystem::create_directories(run + "/checkpoints");
  ASSERT_TRUE(Train({.config = config, .run_dir = run}).status.ok());
  EXPECT_THAT(ExportTorchScript(run + "/checkpoints/step-1", run + "/out.pt", "").message(),
              HasSubstr("is of model simple_cnn"));
  EXPECT_FALSE(std::filesystem::exists(run + "/out.pt"));
}

TEST_F(ScriptModelTest, InitialWeightsComeFromAFile) {
  TrainConfig config;
  config.model_name = "resnet18";
  const SampleSpec data = {.input_shape = {3, 32, 32}, .classes = 10};
  const Model from = *CreateModel({config, data});
  const Model to = *CreateModel({config, data});
  std::vector<NamedTensor> tensors = from.Parameters();
  for (const NamedTensor& item : from.Buffers()) {
    // As old files have it.
    if (item.name.find("num_batches_tracked") == std::string::npos) tensors.push_back(item);
  }
  const std::string path = dir() + "/weights.safetensors";
  WriteTensors(path, tensors);
  ASSERT_FALSE(at::equal(from.Parameters()[0].tensor, to.Parameters()[0].tensor));
  ASSERT_TRUE(LoadInitialWeights(path, "", to).ok()) << LoadInitialWeights(path, "", to);
  for (size_t i = 0; i < from.Parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(from.Parameters()[i].tensor, to.Parameters()[i].tensor));
  }
  // For other classes, and for another network.
  config.model_classes = 12;
  EXPECT_THAT(
      LoadInitialWeights(path, "", *CreateModel({config, data})).message(),
      AllOf(HasSubstr("[model] weights: "), HasSubstr(path),
            HasSubstr("tensor \"fc.weight\" is F32 [10, 512], expected F32 [12, 512]; tensor "
                      "\"fc.bias\" is F32 [10], expected F32 [12]:"),
            HasSubstr("; [model] classes = 10 would fit it")));
  config.model_stem = "imagenet";
  EXPECT_THAT(LoadInitialWeights(path, "", *CreateModel({config, data})).message(),
              HasSubstr("; [model] stem = \"cifar\", classes = 10 would fit it"));
  config.model_name = "resnet50";
  const std::string other(LoadInitialWeights(path, "", *CreateModel({config, data})).message());
  EXPECT_THAT(other, AllOf(HasSubstr("holds no tensor \"layer1.0.conv3.weight\""),
                           HasSubstr("more differences")));
  EXPECT_THAT(LoadInitialWeights(dir() + "/none", "", to).message(),
              AllOf(HasSubstr("[model] weights: "), HasSubstr(dir() + "/none")));
}

TEST_F(ScriptModelTest, WeightsOfAWrappedModelAndIndexesComeWithTheCommandThatConvertsThem) {
  TrainConfig config;
  config.model_name = "resnet18";
  const Model model = *CreateModel({config, {.input_shape = {3, 32, 32}, .classes = 10}});
  std::vector<NamedTensor> tensors = model.Parameters();
  for (const NamedTensor& item : model.Buffers()) tensors.push_back(item);
  for (NamedTensor& item : tensors) item.name = "module." + item.name;
  const std::string path = dir() + "/wrapped.safetensors";
  WriteTensors(path, tensors);
  EXPECT_THAT(LoadInitialWeights(path, "", model).message(),
              HasSubstr(absl::StrCat("ddprun ckpt convert ", path, " --prefix-strip module. -o ")));
  tensors[0].name = "module.other";
  WriteTensors(path, tensors);
  EXPECT_THAT(LoadInitialWeights(path, "", model).message(), HasSubstr("holds no tensor"));
  EXPECT_THAT(LoadInitialWeights(dir() + "/w.safetensors.index.json", "", model).message(),
              HasSubstr("is an index of several files; make one of them: ddprun ckpt convert"));
}

TEST_F(ScriptModelTest, ANewLastLayerOnTrainedOnes) {
  TrainConfig config;
  config.model_name = "resnet18";
  SampleSpec data = {.input_shape = {3, 32, 32}, .classes = 10};
  const Model from = *CreateModel({config, data});
  std::vector<NamedTensor> tensors = from.Parameters();
  for (const NamedTensor& item : from.Buffers()) tensors.push_back(item);
  const std::string path = dir() + "/weights.safetensors";
  WriteTensors(path, tensors);
  data.classes = 3;
  const Model to = *CreateModel({config, data});
  std::vector<at::Tensor> before;
  for (const NamedTensor& item : to.Parameters()) before.push_back(item.tensor.detach().clone());
  EXPECT_THAT(LoadInitialWeights(path, "", to).message(),
              HasSubstr(", or weights_except = \"fc.\" begins with a new last layer"));
  ASSERT_EQ(LoadInitialWeights(path, "fc., layer4.1.bn2.", to).message(), "");
  for (size_t i = 0; i < before.size(); ++i) {
    const std::string& name = to.Parameters()[i].name;
    const bool fresh = name.starts_with("fc.") || name.starts_with("layer4.1.bn2.");
    const at::Tensor& expected = fresh ? before[i] : from.Parameters()[i].tensor;
    EXPECT_TRUE(at::equal(to.Parameters()[i].tensor, expected)) << name;
  }
  EXPECT_THAT(LoadInitialWeights(path, "head.", to).message(),
              HasSubstr("[model] weights_except: no weight of this model has a name that begins "
                        "with \"head.\"; the last one is \"fc.bias\""));
}

TEST_F(ScriptModelTest, WeightsOfAnotherTypeAreRefusedWithTheCommandThatConvertsThem) {
  TrainConfig config;
  config.model_name = "resnet18";
  const SampleSpec data = {.input_shape = {3, 32, 32}, .classes = 10};
  const Model model = *CreateModel({config, data});
  const std::string path = dir() + "/half.safetensors";
  for (const auto& [type, name] : {std::pair(at::kHalf, "F16"), std::pair(at::kBFloat16, "BF16"),
                                   std::pair(at::kDouble, "F64")}) {
    std::vector<NamedTensor> tensors = model.Parameters();
    for (const NamedTensor& item : model.Buffers()) tensors.push_back(item);
    for (NamedTensor& item : tensors) {
      if (item.tensor.is_floating_point()) item.tensor = item.tensor.detach().to(type);
    }
    WriteTensors(path, tensors);
    EXPECT_THAT(
        LoadInitialWeights(path, "", model).message(),
        AllOf(HasSubstr(absl::StrCat("[model] weights: ", path, ": tensor \"conv1.weight\" is ",
                                     name, ", expected F32; ")),
              HasSubstr(absl::StrCat("ddprun ckpt convert ", path, " --dtype fp32 -o ", dir(),
                                     "/half-fp32.safetensors"))));
    // Of another network besides: no conversion would help.
    tensors.erase(tensors.begin());
    WriteTensors(path, tensors);
    EXPECT_THAT(LoadInitialWeights(path, "", model).message(), Not(HasSubstr("ckpt convert")));
  }
}

TEST_F(ScriptModelTest, ARunBeginsWithTheWeightsOfTheFile) {
  TrainConfig config = WriteRandomData(dir() + "/data", 64, 16);
  config.train_epochs = 0;
  config.train_steps = 2;
  const auto digest = [&](const std::string& name) {
    const std::string run = absl::StrCat(dir(), "/begin-", name);
    std::filesystem::create_directories(run + "/checkpoints");
    TrainOutcome outcome = Train({.config = config, .run_dir = run});
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    return outcome.results["WEIGHTS_DIGEST"];
  };
  const std::string drawn = digest("drawn");
  config.model_weights = dir() + "/begin-drawn/checkpoints/step-2/model.safetensors";
  const std::string given = digest("given");
  EXPECT_NE(given, drawn);
  config.train_lr = 0;  // what it began with is what it ends with
  config.train_optimizer = "sgd";
  EXPECT_EQ(digest("kept"), drawn);
}

}  // namespace
}  // namespace ddprun
