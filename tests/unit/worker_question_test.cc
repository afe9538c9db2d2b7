// What ddp-worker is asked before anything is started, with workers made up for it: its objection
// is ddprun's, and whatever it does, ddprun neither hangs nor leaves anything behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/unit/cli_folder.h"
#include "tests/unit/cli_process.h"

namespace ddprun::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A folder with ddprun and a ddp-worker of the test's own.
class WorkerQuestionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(folder_ / "bin");
    fs::copy_file(DdprunPath(), folder_ / "bin/ddprun");
    fs::copy_file(fs::path(DdprunPath()).parent_path() / "ddprun-keeper",
                  folder_ / "bin/ddprun-keeper");
    WriteTinyJob(folder_);
    std::string config = folder_.Read("train.cfg");
    config.replace(config.find("\"idx\""), 5, "\"synthetic\"");
    config.erase(config.find("dir ="), config.find("batch_size") - config.find("dir ="));
    folder_.Write("train.cfg", config);
  }
  void Worker(const std::string& script) {
    folder_.Write("bin/ddp-worker", "#!/bin/sh\n" + script, 0755);
  }
  Ended Ddprun(const std::vector<std::string>& words) {
    std::vector<std::string> command = {folder_ / "bin/ddprun"};
    command.insert(command.end(), words.begin(), words.end());
    return RunToEnd(command, folder_.path());
  }
  bool MadeRuns() { return fs::exists(folder_ / "runs"); }
  Folder folder_;
};

TEST_F(WorkerQuestionTest, AnObjectionIsOneLineAndNothingIsMade) {
  Worker("echo noise >&2; echo 'ddp-worker: data/cat.jpg: not a JPEG' >&2; exit 2");
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--dry-run"}, {"--nproc", "2"}}) {
    std::vector<std::string> words = {"train.cfg"};
    words.insert(words.end(), more.begin(), more.end());
    const Ended ended = Ddprun(words);
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_EQ(ended.error, "ddprun: data/cat.jpg: not a JPEG\n");
    EXPECT_EQ(ended.output, "");
    EXPECT_FALSE(MadeRuns());
  }
}

TEST_F(WorkerQuestionTest, TheWorkerIsToldTheConfigurationAndTheRanksAndComputesOnTheCpu) {
  Worker("echo \"$1 $2 $DDPRUN_DEVICE $DDPRUN_TRAIN_CONFIG\" > asked; exit 2");
  Ddprun({"--nproc", "3", "train.cfg", "--set", "train.lr=0.125"});
  EXPECT_THAT(folder_.Read("asked"),
              AllOf(HasSubstr("--check 3 cpu {"), HasSubstr("\"lr\":0.125")));
}

TEST_F(WorkerQuestionTest, AWorkerThatDiesIsNoConsent) {
  Worker("kill -KILL $$");
  const Ended killed = Ddprun({"train.cfg"});
  EXPECT_EQ(killed.exit_code, 1);
  EXPECT_THAT(killed.error, AllOf(HasSubstr("code 137"), HasSubstr("memory")));
  Worker("echo 'error while loading shared libraries: libx.so' >&2; exit 127");
  const Ended broken = Ddprun({"train.cfg"});
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.error, HasSubstr("libx.so"));
  EXPECT_FALSE(MadeRuns());
}

TEST_F(WorkerQuestionTest, WithoutAWorkerItIsSaidWhatIsMissing) {
  const Ended ended = Ddprun({"train.cfg"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.error, HasSubstr("ddp-worker is missing"));
}

// The pipe ends when the worker and all that holds it have ended.
TEST_F(WorkerQuestionTest, CtrlCEndsTheWaitAndTheWorker) {
  ASSERT_EQ(mkfifo((folder_ / "alive").c_str(), 0600), 0);
  Worker("exec 9>alive; echo started >&9; sleep 600");
  for (int signal : {SIGINT, SIGTERM}) {
    Running ddprun({folder_ / "bin/ddprun", "train.cfg"}, folder_.path());
    const int alive = open((folder_ / "alive").c_str(), O_RDONLY);
    char started[8];
    ASSERT_EQ(read(alive, started, sizeof started), 8);
    ddprun.Signal(signal);
    EXPECT_EQ(ddprun.WaitForEnd(), 128 + signal);
    EXPECT_EQ(read(alive, started, sizeof started), 0) << "nothing of the worker is left";
    close(alive);
  }
  EXPECT_FALSE(MadeRuns());
}

TEST_F(WorkerQuestionTest, WhoeverWaitsIsToldFor) {
  ASSERT_EQ(mkfifo((folder_ / "go_on").c_str(), 0600), 0);
  Worker("read line < go_on; echo 'ddp-worker: no' >&2; exit 2");
  Running ddprun({folder_ / "bin/ddprun", "train.cfg"}, folder_.path());
  EXPECT_THAT(ddprun.WaitFor("Ctrl-C stops"), HasSubstr("still checking data and model"));
  const int go_on = open((folder_ / "go_on").c_str(), O_WRONLY);
  close(go_on);
  EXPECT_EQ(ddprun.WaitForEnd(), 2);
}

TEST_F(WorkerQuestionTest, WhatTheLauncherChecksItselfNeedsNoQuestion) {
  Worker("echo asked > asked; exit 2");
  Folder job;
  WriteTinyJob(job);
  const Ended ended =
      Ddprun({"--dry-run", job / "train.cfg", "--set", "data.dir=" + (job / "data")});
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_FALSE(fs::exists(folder_ / "asked"));
}

TEST_F(WorkerQuestionTest, APlanIsShown) {
  Worker(
      R"(test "$1 $2" = "--plan 4" && echo '{"model": "resnet18", "parameters": 11689512, "world_size": 4,
"samples_per_step": 256, "batch_size": 64, "accumulation_steps": 1, "steps": 10, "memory": {"weights": 46758048,
"on_device": 90000000}, "communication": {"reduced_bytes": 46758048, "sent_bytes_per_rank": 70137072},
"options": [{"change": "recompute", "activations": 5, "on_device": 50000000}], "assumptions": ["a ring"]}')");
  const Ended text = Ddprun({"plan", "--nproc", "2", "--nnodes", "2", "train.cfg"});
  EXPECT_EQ(text.exit_code, 0) << text.error;
  EXPECT_THAT(text.output,
              AllOf(HasSubstr("resnet18"), HasSubstr("11,689,512"),
                    HasSubstr("256 = batch 64 x accumulation 1 x 4 ranks"), HasSubstr("46.8 MB"),
                    HasSubstr("70.1 MB"), HasSubstr("recompute"), HasSubstr("a ring")));
  EXPECT_THAT(Ddprun({"plan", "--nproc", "4", "--json", "train.cfg"}).output,
              HasSubstr("\"parameters\": 11689512"));
  Worker("echo nonsense");
  EXPECT_EQ(Ddprun({"plan", "train.cfg"}).exit_code, 1);
  Worker("echo 'ddp-worker: [data] dir: empty' >&2; exit 2");
  const Ended bad = Ddprun({"plan", "train.cfg"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_EQ(bad.error, "ddprun: train.cfg: [data] dir: empty\n");
  EXPECT_THAT(Ddprun({"plan"}).error, HasSubstr("plan what?"));
  EXPECT_THAT(Ddprun({"plan", "train.py"}).error, HasSubstr("plan is for a train.cfg"));
  EXPECT_FALSE(MadeRuns());
}

}  // namespace
}  // namespace ddprun::cli
