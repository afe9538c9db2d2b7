// Which programs are preloaded, and with what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/agent/reserve.h"
#include "launcher/cli/preload.h"

namespace ddprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(PreloadChoice, AnInterpreterWithPlainOptionsBeforeAScriptOrModule) {
  EXPECT_EQ(cli::InterpreterWords({"python3", "train.py", "-m"}), 1u);
  EXPECT_EQ(cli::InterpreterWords({"/opt/venv/bin/python3.11", "-u", "-B", "train.py"}), 3u);
  EXPECT_EQ(cli::InterpreterWords({"python", "-u", "-m", "package.train", "--x"}), 2u);
  EXPECT_EQ(cli::InterpreterWords({"python", "-c", "print(1)"}), 0u);
  EXPECT_EQ(cli::InterpreterWords({"python", "-I", "train.py"}), 0u);
  EXPECT_EQ(cli::InterpreterWords({"python"}), 0u);
  EXPECT_EQ(cli::InterpreterWords({"python", "script"}), 0u);
  EXPECT_EQ(cli::InterpreterWords({"pythonista", "train.py"}), 0u);
  EXPECT_EQ(cli::InterpreterWords({"bash", "train.py"}), 0u);
  EXPECT_EQ(cli::InterpreterWords({}), 0u);
}

TEST(PreloadChoice, TheModulesOfTorchAndNumpyThatTheScriptImportsItself) {
  EXPECT_THAT(cli::HeavyImports("import os, torch\nfrom torch.nn.parallel import X\n"
                                "import torch.distributed as dist, numpy as np  # both\n"
                                "import torch\nfrom .torch import y\nimport torchy\n"
                                "  import torch.fx\n\"\"\"\nfrom torch\n"),
              ElementsAre("torch", "torch.nn.parallel", "torch.distributed", "numpy"));
  EXPECT_THAT(cli::HeavyImports("import numpy\nprint(1)\n"), IsEmpty());
  EXPECT_THAT(cli::HeavyImports(""), IsEmpty());
  EXPECT_THAT(cli::HeavyImports("from torch"), ElementsAre("torch"));
}

TEST(PreloadChoice, NoneWhereTheScriptSetsWhatLibrariesReadWhenTheyAreLoaded) {
  for (const char* line :
       {"os.environ['OMP_NUM_THREADS'] = '1'", "  os.environ[\"TORCH_LOGS\"]=\"+dynamo\"",
        "os.environ.setdefault('MKL_NUM_THREADS', '1')", "os.putenv(\"KMP_BLOCKTIME\", \"0\")"}) {
    EXPECT_THAT(cli::HeavyImports(std::string(line) + "\nimport torch\n"), IsEmpty()) << line;
    EXPECT_THAT(cli::HeavyImports("import torch\n" + std::string(line)), IsEmpty()) << line;
  }
  for (const char* line :
       {"os.environ['CUDA_VISIBLE_DEVICES'] = '1'", "n = os.environ[\"TORCHELASTIC_RUN_ID\"]",
        "if os.environ['OMP_NUM_THREADS'] == '1':", "x = os.environ.get('OMP_NUM_THREADS', '1')",
        "d['OMP_NUM_THREADS'] = 1"}) {
    EXPECT_THAT(cli::HeavyImports(std::string(line) + "\nimport torch\n"), ElementsAre("torch"))
        << line;
  }
}

v1::StartWorkers Order() {
  v1::StartWorkers order;
  order.set_job_id("job");
  order.set_generation(3);
  order.set_world_size(2);
  order.set_local_world_size(2);
  order.set_master_address("127.0.0.1");
  v1::JobSpec& spec = *order.mutable_spec();
  spec.set_run_dir("/run");
  spec.set_working_dir("/home");
  for (const char* word : {"python3", "-u", "train.py", "--x"}) spec.add_program(word);
  (*spec.mutable_environment())["HOME"] = "/root";
  (*spec.mutable_environment())["OMP_NUM_THREADS"] = "2";
  spec.mutable_launching()->add_preload_modules("torch");
  spec.mutable_launching()->set_interpreter_words(2);
  return order;
}

std::string Spec(const v1::StartWorkers& order) {
  std::string text = agent::MakeReserveSpec(order, {}, "/bin/ddprun-preload.py");
  std::replace(text.begin(), text.end(), '\0', '\n');
  return text;
}

TEST(PreloadChoice, ThePreloaderHasWhatAllWorkersShare) {
  const std::string spec = Spec(Order());
  EXPECT_THAT(spec, HasSubstr("ARG=python3\nARG=-u\nARG=/bin/ddprun-preload.py\nARG=2\nARG=2\n"
                              "ARG=torch\nARG=train.py\nARG=--x\n"));
  EXPECT_THAT(spec, HasSubstr("ENV=HOME=/root\n"));
  EXPECT_THAT(spec, HasSubstr("ENV=OMP_NUM_THREADS=2\n"));
  EXPECT_THAT(spec, Not(HasSubstr("RANK=")));
  EXPECT_THAT(spec, Not(HasSubstr("DDPRUN_")));
}

TEST(PreloadChoice, OneReserveServesTheNextGenerationToo) {
  v1::StartWorkers next = Order();
  next.set_generation(4);
  next.set_restart_count(1);
  next.set_master_port(1234);
  next.set_resume_step(7);
  EXPECT_EQ(Spec(next), Spec(Order()));
}

TEST(PreloadChoice, NothingIsPreloadedWithoutModules) {
  v1::StartWorkers order = Order();
  order.mutable_spec()->mutable_launching()->clear_preload_modules();
  EXPECT_EQ(Spec(order), "");
}

}  // namespace
}  // namespace ddprun
