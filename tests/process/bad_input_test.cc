// Bad input as a user meets it (issue 6, "Bad input"): one error that names file and fault, exit
// code 2 where it can be known at the start; nothing hangs, nothing is tried again in vain.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

namespace fs = std::filesystem;

class BadInput : public ::testing::Test {
 protected:
  BadInput() {
    std::string pattern = ::testing::TempDir() + "bad_input_XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  ~BadInput() override { fs::remove_all(dir_); }

  // Without [data].
  std::vector<std::string> Job(const std::vector<std::string>& settings) {
    std::ofstream(dir_ + "/job.cfg") << R"([model]
name = "resnet18"
[train]
steps = 8
evaluate = false
)";
    std::vector<std::string> job;
    for (const std::string& setting : settings) job.insert(job.end(), {"--set", setting});
    job.push_back(dir_ + "/job.cfg");
    return job;
  }
  // On made-up images of 3 x 8 x 8.
  static std::vector<std::string> WithImages(std::vector<std::string> settings) {
    for (const char* more :
         {"data.kind=synthetic", "data.samples=32", "data.image_size=8", "data.batch_size=2"}) {
      settings.emplace_back(more);
    }
    return settings;
  }
  void ExpectRefused(const std::vector<std::string>& settings, const std::string& what) {
    Launch launch(Mode::kTogether, 2, Job(settings));
    const Finished finished = launch.Wait(30);
    EXPECT_EQ(finished.exit_code, 2) << finished.output;
    EXPECT_NE(finished.output.find(what), std::string::npos) << what << "\n" << finished.output;
    EXPECT_FALSE(fs::exists(launch.run_dir())) << "nothing was begun";
  }
  // Saves `module`, an expression of Python, as a TorchScript file.
  std::string SaveModule(const std::string& python, const std::string& code) {
    std::ofstream(dir_ + "/module.py") << "import sys, torch\nfrom torch import nn\n"
                                       << code << "\ntorch.jit.script(module).save(sys.argv[1])\n";
    const std::string file = dir_ + "/module.pt";
    const std::string command = python + " -W ignore " + dir_ + "/module.py " + file;
    EXPECT_EQ(std::system(command.c_str()), 0);
    return file;
  }
  std::string dir_;
};

TEST_F(BadInput, ANamedPipeInPlaceOfAFileIsNotWaitedFor) {
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "data_batch_1.bin",
                           "train.bin", "model.pt", "model.safetensors"}) {
    ASSERT_EQ(mkfifo((dir_ + "/" + name).c_str(), 0600), 0) << name;
  }
  const std::string dir = "data.dir=" + dir_;
  ExpectRefused({"model.name=simple_cnn", "data.kind=idx", dir},
                "train-labels-idx1-ubyte: not a regular file");
  ExpectRefused({"data.kind=cifar10", dir}, "data_batch_1.bin: not a regular file");
  ExpectRefused({"model.name=gpt", "model.vocab_size=9", "data.kind=tokens", dir},
                "train.bin: not a regular file");
  ExpectRefused(WithImages({"model.name=torchscript", "model.file=" + dir_ + "/model.pt"}),
                "model.pt: is not a regular file");
  ExpectRefused(WithImages({"model.weights=" + dir_ + "/model.safetensors"}),
                "model.safetensors: not a regular file");
}

// Only ddp-worker can tell, which knows no lines: asked before the start, whatever the model.
TEST_F(BadInput, WhatOnlyTheModelTellsHasThePlaceOfItsKey) {
  const std::string fashion = "data.dir=/usr/share/datasets/fashion-mnist";
  ExpectRefused({"model.name=simple_cnn", "data.kind=idx", fashion, "model.weights=/nothing"},
                "ddprun: --set model.weights=/nothing: /nothing: cannot open");
  ExpectRefused({"model.name=simple_cnn", "data.kind=idx", fashion, "parallel.sync_bn=on"},
                "ddprun: --set parallel.sync_bn=on: the model simple_cnn has no batch norm");
  std::ofstream(dir_ + "/gpt.cfg") << R"([model]
name = "gpt"
d_model = 16
heads = 3
[data]
kind = "synthetic"
[train]
steps = 1
)";
  Launch launch(Mode::kTogether, 1, {dir_ + "/gpt.cfg"});
  const Finished finished = launch.Wait(30);
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_NE(finished.output.find(dir_ + "/gpt.cfg:4: [model] heads: is 3, which does not divide"),
            std::string::npos)
      << finished.output;
}

TEST_F(BadInput, WeightsThatAreNotFiniteAreRefusedUnlessAskedFor) {
  const char* python = std::getenv("DDPRUN_PYTHON");
  if (python == nullptr || *python == '\0') GTEST_SKIP() << "no DDPRUN_PYTHON";
  const std::string file = SaveModule(python, R"py(
module = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
with torch.no_grad():
    module[1].bias[3] = float("nan")
)py");
  const std::vector<std::string> settings =
      WithImages({"model.name=torchscript", "model.classes=10", "model.file=" + file});
  ExpectRefused(settings, file + ": not all of its numbers are finite: 1.bias");
  std::vector<std::string> ignored = settings;
  ignored.emplace_back("checks.non_finite=ignore");
  Launch launch(Mode::kTogether, 2, Job(ignored));
  const Finished finished = launch.Wait(60);
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
}

// The checkpoint brings the weights: the file that the run began with may be gone, or spoilt.
TEST_F(BadInput, AResumedRunNeedsNoFileOfInitialWeights) {
  const std::string weights = dir_ + "/start.safetensors";
  {
    Launch launch(Mode::kTogether, 1, Job(WithImages({"train.steps=1"})));
    ASSERT_EQ(launch.Wait(60).exit_code, 0);
    fs::copy_file(launch.run_dir() + "/checkpoints/step-1/model.safetensors", weights);
  }
  const auto settings = [&](const std::string& steps) {
    return Job(WithImages({"train.steps=" + steps, "model.weights=" + weights}));
  };
  Launch launch(Mode::kTogether, 2, settings("2"));
  ASSERT_EQ(launch.Wait(60).exit_code, 0);
  for (const char* content : {"", "no weights"}) {
    fs::remove(weights);
    if (*content != '\0') std::ofstream(weights) << content;
    const std::string steps = *content == '\0' ? "3" : "4";
    std::vector<std::string> resume = settings(steps);
    resume.insert(resume.begin(), "--resume");
    Launch again(Mode::kTogether, 2, resume, launch.run_dir());
    const Finished finished = again.Wait(60);
    EXPECT_EQ(finished.exit_code, 0) << finished.output;
    EXPECT_EQ(again.Result()["final_step"], std::stoi(steps));
  }
  // Without a checkpoint the run begins anew, and does need it.
  fs::remove_all(launch.run_dir() + "/checkpoints");
  std::vector<std::string> resume = settings("5");
  resume.insert(resume.begin(), "--resume");
  Launch anew(Mode::kTogether, 2, resume, launch.run_dir());
  const Finished finished = anew.Wait(60);
  EXPECT_EQ(finished.exit_code, 2) << finished.output;
  EXPECT_NE(finished.output.find("start.safetensors"), std::string::npos) << finished.output;
}

// The tokens are mapped: what was cut off cannot be read, and SIGBUS ends the rank. Before it, the
// file and the place are told, by one of the threads that come upon it at the same time.
TEST_F(BadInput, AFileThatIsCutUnderARunningJobIsNamed) {
  const std::string file = dir_ + "/train.bin";
  std::ofstream(file, std::ios::binary) << std::string(8 << 20, '\0');
  std::vector<std::string> job =
      Job({"model.name=gpt", "model.vocab_size=8", "model.d_model=8", "model.heads=1",
           "model.layers=1", "model.sequence_length=64", "data.kind=tokens", "data.dir=" + dir_,
           "data.batch_size=4", "train.steps=1000000"});
  job.insert(job.begin(), {"--max-restarts", "0"});
  Launch launch(Mode::kTogether, 1, job);
  ASSERT_TRUE(launch.WaitForEvent("training_progressed", 1, 60));
  fs::resize_file(file, 4096);
  const Finished finished = launch.Wait(60);
  EXPECT_EQ(finished.exit_code, 128 + SIGBUS) << finished.output;
  const auto failure = launch.Result()["first_failure"];
  EXPECT_EQ(failure["signal"], "SIGBUS");
  const std::string told = failure["log_tail"].dump();
  EXPECT_NE(told.find(file + ": byte "), std::string::npos) << told;
  EXPECT_NE(told.find("the file was cut, or its disk"), std::string::npos) << told;
}

TEST_F(BadInput, AModuleThatRaisesEndsTheJobAtOnce) {
  const char* python = std::getenv("DDPRUN_PYTHON");
  if (python == nullptr || *python == '\0') GTEST_SKIP() << "no DDPRUN_PYTHON";
  const std::string file = SaveModule(python, R"py(
class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(192, 10)
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, x):
        if self.training:
            self.seen += 1
        if bool(self.seen > 3):
            raise ValueError("an odd batch")
        return self.fc(x.flatten(1))
module = Counts()
)py");
  Launch launch(
      Mode::kTogether, 2,
      Job(WithImages({"model.name=torchscript", "model.classes=10", "model.file=" + file})));
  const Finished finished = launch.Wait(60);
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  const auto result = launch.Result();
  EXPECT_EQ(result["generations"], 1) << "no restart";
  const std::string reason = result["first_failure"]["reason"];
  EXPECT_NE(reason.find("the TorchScript module raised builtins.ValueError: an odd batch"),
            std::string::npos)
      << reason;
}

}  // namespace
}  // namespace ddprun::testing
