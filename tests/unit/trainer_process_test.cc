// ddp-worker started by hand: trains as rank 0 of 1, and says clearly why it cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/client_keeper.h"
#include "tests/unit/trainer_harness.h"

namespace ddprun {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct Ended {
  int exit_code = -1;
  std::string output;  // both streams
};

Ended RunWorker(const std::string& arguments, const std::string& before = "") {
  const char* bin = std::getenv("DDPRUN_BIN");
  FILE* pipe = popen(
      absl::StrCat(before, bin == nullptr ? "." : bin, "/ddp-worker ", arguments, " 2>&1").c_str(),
      "r");
  Ended ended;
  if (pipe == nullptr) return ended;
  std::array<char, 4096> buffer;
  for (size_t count = 0; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    ended.output.append(buffer.data(), count);
  }
  ended.exit_code = WEXITSTATUS(pclose(pipe));
  return ended;
}

class WorkerByHandTest : public ::testing::Test {
 protected:
  std::string WriteConfig(const std::string& extra) {
    WriteRandomData(folder_.path() + "/data", 60, 20);
    const std::string path = folder_.path() + "/train.cfg";
    std::ofstream(path)
        << "[model]\nname = \"simple_cnn\"\n[data]\nkind = \"idx\"\nbatch_size = 8\ndir = \""
        << folder_.path() << "/data\"\n[log]\nevery_steps = 2\n[train]\nepochs = 1\n"
        << extra;
    return path;
  }
  TemporaryFolder folder_;
};

TEST_F(WorkerByHandTest, TrainsToTheEndAndLogsRankEpochBatchAndLoss) {  // MA6, TR54
  const Ended ended = RunWorker(WriteConfig(""));
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  EXPECT_THAT(ended.output, ContainsRegex("rank 0 epoch 1 batch 2/7 loss [0-9]+\\.[0-9]{4}\n"));
  EXPECT_THAT(ended.output,
              ContainsRegex("step 7 test accuracy [01]\\.[0-9]{4} \\([0-9]+ of 20\\)"));
  EXPECT_THAT(ended.output,
              ContainsRegex("done: step 7, .* weights [0-9a-f]{32}, .* in checkpoint calls"));
}

TEST_F(WorkerByHandTest, TwoRunsEndWithTheSameWeights) {
  const auto digest = [](const std::string& output) {
    const size_t at = output.find("weights ");
    return at == std::string::npos ? "none" : output.substr(at, 40);
  };
  const std::string config = WriteConfig("");
  const std::string first = digest(RunWorker(config).output);
  EXPECT_NE(first, "none");
  EXPECT_EQ(digest(RunWorker(config).output), first);
}

TEST_F(WorkerByHandTest, AnErrorIsOneLineAndExitCodeOne) {
  Ended ended = RunWorker(WriteConfig("lerning_rate = 1\n"));
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.output, HasSubstr("[train] lerning_rate: unknown key; did you mean \"lr\"?"));
  ended = RunWorker("");
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.output, HasSubstr("no configuration: start it with `ddprun train.cfg`"));
  const std::string config = WriteConfig("");
  std::ofstream(folder_.path() + "/data/train-labels-idx1-ubyte") << "damaged";
  ended = RunWorker(config);
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.output, HasSubstr("train-labels-idx1-ubyte: not an IDX file"));
}

// Memory: what was asked for, what is used for what, and what would help, with numbers.
TEST_F(WorkerByHandTest, OutOfMemorySaysWhatWouldHelp) {
  const std::string config = WriteConfig("");
  WriteRandomData(folder_.path() + "/data", 20000, 20);
  std::string text;
  std::getline(std::ifstream(config), text, '\0');
  std::ofstream(config) << absl::StrReplaceAll(
      text, {{"batch_size = 8", "batch_size = 20000\nworkers = 0"}});
  // Its first convolution gives 1.7 GB.
  const Ended ended = RunWorker(config, "ulimit -v 2500000; ");
  EXPECT_EQ(ended.exit_code, 1) << ended.output;
  EXPECT_THAT(ended.output, ContainsRegex("out of memory: can't allocate memory: you tried to "
                                          "allocate [0-9]+ bytes"));
  EXPECT_THAT(ended.output, ContainsRegex("weights 212.5 KiB, gradients .* activations"));
  // Of a sample: input, what comes out of the convolution, its gradient, and what is pooled: 230
  // kB.
  EXPECT_THAT(ended.output,
              ContainsRegex("by a dry run on the CPU it needs 4\\.[0-9]+ GiB, of which "
                            "4\\.[0-9]+ GiB for activations"));
  EXPECT_THAT(ended.output,
              ContainsRegex("\\[data\\] batch_size = 10000 with \\[train\\] accumulation_steps = "
                            "2: 2\\.[0-9]+ GiB for activations"));
}

}  // namespace
}  // namespace ddprun
