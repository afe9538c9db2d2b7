// The configurations in examples/, each run by ddprun at a small size on data that
// scripts/make_example_data.py has made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using ::testing::HasSubstr;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class ExamplesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Variable("DDPRUN_PYTHON").empty()) GTEST_SKIP() << "no DDPRUN_PYTHON";
    data_ = ::testing::TempDir() + absl::StrCat("examples-", getpid());
    const std::string command =
        absl::StrCat(Variable("DDPRUN_PYTHON"), " ", Variable("DDPRUN_SOURCE"),
                     "/scripts/make_example_data.py ", data_, " > /dev/null");
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  void TearDown() override { std::filesystem::remove_all(data_); }

  // Two updates on two processes, an evaluation unless the example has none, and a checkpoint.
  void RunExample(const std::string& name, std::vector<std::string> settings,
                  bool evaluates = true) {
    settings.insert(settings.end(), {"train.steps=2", "log.every_steps=1", "data.workers=1"});
    std::vector<std::string> arguments = {"--device", "cpu"};
    for (const std::string& setting : settings) {
      arguments.emplace_back("--set");
      arguments.push_back(setting);
    }
    arguments.push_back(absl::StrCat(Variable("DDPRUN_SOURCE"), "/examples/", name, ".cfg"));
    Launch launch(Mode::kTogether, 2, std::move(arguments));
    const Finished finished = launch.Wait(240);
    ASSERT_EQ(finished.exit_code, 0) << finished.output;
    const Launch::Json result = launch.Result();
    EXPECT_EQ(result["status"], "succeeded");
    EXPECT_EQ(result["final_step"], 2);
    EXPECT_TRUE(result["metrics"].contains("final_loss")) << result;
    EXPECT_EQ(result["metrics"].contains("test_loss"), evaluates) << result;
    EXPECT_TRUE(std::filesystem::exists(launch.run_dir() + "/checkpoints/step-2"));
  }

  std::string data_;
};

TEST_F(ExamplesTest, Resnet18OnCifar10) {
  RunExample("resnet18_cifar", {absl::StrCat("data.dir=", data_, "/cifar10"), "data.batch_size=4"});
}

// As PNG and as JPEG.
TEST_F(ExamplesTest, Resnet50OnAFolderOfPictures) {
  std::map<std::string, int> kinds;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(data_ + "/pictures")) {
    kinds[entry.path().extension()] += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(kinds[".png"], 32);
  EXPECT_EQ(kinds[".jpg"], 32);
  RunExample("image_folder", {absl::StrCat("data.dir=", data_, "/pictures"), "data.batch_size=2",
                              "data.image_size=32", "data.resize=40"});
}

TEST_F(ExamplesTest, GptOnText) {
  RunExample("gpt", {absl::StrCat("data.dir=", data_, "/text"), "data.batch_size=2",
                     "model.sequence_length=32", "train.warmup_steps=1"});
}

TEST_F(ExamplesTest, BertOnText) {
  RunExample("bert", {absl::StrCat("data.dir=", data_, "/text"), "data.batch_size=2",
                      "model.layers=2", "train.warmup_steps=1"});
}

TEST_F(ExamplesTest, Resnet50OnSyntheticImages) {
  RunExample("synthetic", {"data.batch_size=2", "data.image_size=32", "data.samples=16"},
             /*evaluates=*/false);
}

TEST_F(ExamplesTest, AModuleFromPythonOnCifar10) {
  RunExample("torchscript", {absl::StrCat("data.dir=", data_, "/cifar10"), "data.batch_size=4",
                             absl::StrCat("model.file=", data_, "/module.pt")});
}

}  // namespace
}  // namespace ddprun::testing
