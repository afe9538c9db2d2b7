// `ddprun ckpt export --format torchscript`: a module from Python, trained, exported, opened by
// Python again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>

#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Answer {
  int exit_code = -1;
  std::string text;  // of both streams
};

class ExportModuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Variable("DDPRUN_PYTHON").empty()) GTEST_SKIP() << "no DDPRUN_PYTHON";
    std::string pattern = ::testing::TempDir() + "export_module_XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(dir_); }

  // In the folder of the test.
  Answer Run(const std::string& command) {
    const std::string all = "cd " + dir_ + " && { " + command + "; } > output 2>&1";
    const int status = std::system(all.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadText(dir_ + "/output")};
  }
  Answer Python(const std::string& script, const std::string& arguments) {
    return Run(Variable("DDPRUN_PYTHON") + " -W ignore " + Variable("DDPRUN_SOURCE") +
               "/tests/python/" + script + " " + arguments);
  }
  Answer Export(const std::string& arguments) {
    return Run(DdprunPath() + " ckpt export --format torchscript " + arguments);
  }
  // Trains for three steps; the folder of its last checkpoint.
  std::string Train(const std::string& name, const std::vector<std::string>& settings) {
    std::vector<std::string> job;
    for (const std::string& setting : settings) job.insert(job.end(), {"--set", setting});
    job.insert(job.end(),
               {"--set", "train.steps=3", "--set", "train.evaluate=false", "--set",
                "data.batch_size=4", Variable("DDPRUN_SOURCE") + "/examples/fashion_mnist.cfg"});
    Launch launch(Mode::kTogether, 2, std::move(job));
    const Finished finished = launch.Wait(120);
    EXPECT_EQ(finished.exit_code, 0) << finished.output;
    fs::copy(launch.run_dir(), dir_ + "/" + name, fs::copy_options::recursive);
    return dir_ + "/" + name + "/checkpoints/step-3";
  }
  std::string dir_;
};

TEST_F(ExportModuleTest, PythonOpensWhatWasTrained) {
  ASSERT_EQ(Python("make_script_modules.py", dir_).exit_code, 0);
  const std::string file = dir_ + "/Small.pt";
  const std::string checkpoint =
      Train("run", {"model.name=torchscript", "model.file=" + file, "parallel.sync_bn=off"});
  const Answer written = Export("--run-dir run -o trained.pt");
  EXPECT_EQ(written.exit_code, 0) << written.text;
  EXPECT_THAT(written.text, HasSubstr("wrote the module to trained.pt"));
  const std::string check = "trained.pt " + file + " " + checkpoint;
  const Answer opened = Python("check_exported_module.py", check);
  EXPECT_EQ(opened.exit_code, 0) << opened.text;
  EXPECT_THAT(opened.text, HasSubstr("the exported module is the trained one"));

  const Answer again = Export("3 --run-dir run -o trained.pt");
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.text, HasSubstr("trained.pt"));
  fs::rename(file, dir_ + "/moved.pt");
  const Answer gone = Export(checkpoint + " -o other.pt");
  EXPECT_EQ(gone.exit_code, 2);
  EXPECT_THAT(gone.text, HasSubstr("Small.pt: cannot be read: No such file"));
  EXPECT_EQ(Export(checkpoint + " -o trained.pt --force --module-file moved.pt").exit_code, 0);
  const Answer differs = Export(checkpoint + " -o other.pt --module-file FewClasses.pt");
  EXPECT_NE(differs.exit_code, 0);
  EXPECT_THAT(differs.text, HasSubstr("tensor \"fc.weight\" is F32 [10, 16], expected F32 [3, "));
  EXPECT_FALSE(fs::exists(dir_ + "/other.pt"));
}

TEST_F(ExportModuleTest, OtherModelsAndOptionsOfTensorsAreRefused) {
  Train("run", {});
  const Answer answer = Export("--run-dir run -o trained.pt");
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_THAT(answer.text, AllOf(HasSubstr("is of model simple_cnn"), HasSubstr("safetensors")));
  EXPECT_FALSE(fs::exists(dir_ + "/trained.pt"));
  const Answer option = Export("--run-dir run -o trained.pt --ema");
  EXPECT_EQ(option.exit_code, 2);
  EXPECT_THAT(option.text, HasSubstr("--ema: not with --format torchscript"));
  const Answer module = Run(DdprunPath() + " ckpt export -o a.safetensors --module-file x.pt");
  EXPECT_EQ(module.exit_code, 2);
  EXPECT_THAT(module.text, HasSubstr("--module-file x.pt: only with --format torchscript"));
}

}  // namespace
}  // namespace ddprun::testing
