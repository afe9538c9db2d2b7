// The C trainer of examples/: by hand, killed and resumed, stopped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/unit/client_keeper.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

std::string Trainer() {
  return std::string(getenv("DDPRUN_BIN")) + "/examples/c_trainer";
}

// One run of the trainer under a keeper that commits its checkpoints.
class TrainerRun {
 public:
  TrainerRun(const std::string& run_dir, const std::vector<std::string>& arguments,
             int64_t resume_step)
      : run_dir_(run_dir) {
    EXPECT_EQ(pipe2(output_, O_CLOEXEC), 0);
    std::vector<std::string> variables = {"DDPRUN_RUN_DIR=" + run_dir};
    if (resume_step > 0) {
      variables.push_back("DDPRUN_RESUME_FROM=" + Committed(resume_step));
      variables.push_back("DDPRUN_RESUME_STEP=" + std::to_string(resume_step));
    }
    pid_ = Spawn(keeper_, Trainer(), arguments, variables, output_[1]);
    close(output_[1]);
  }
  ~TrainerRun() { close(output_[0]); }

  // Commits what comes, until the worker is gone or `last` is committed; returns the last step.
  int64_t CommitUntil(int64_t last) {
    int64_t step = 0;
    while (step < last) {
      Packet packet = keeper_.ReceiveType("ShardsWritten");
      if (packet.empty()) break;
      step = std::stoll(packet["STEP"]);
      fs::rename(run_dir_ + "/checkpoints/.staging/g3-step-" + packet["STEP"], Committed(step));
      keeper_.Send({{"TYPE", "CheckpointCommitted"}, {"STEP", packet["STEP"]}});
    }
    return step;
  }
  std::string Output() {
    std::string text(4096, '\0');
    const ssize_t size = read(output_[0], text.data(), text.size());
    text.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return text;
  }
  FakeKeeper& keeper() { return keeper_; }
  int pid() const { return pid_; }

 private:
  std::string Committed(int64_t step) const {
    return run_dir_ + "/checkpoints/step-" + std::to_string(step);
  }
  std::string run_dir_;
  FakeKeeper keeper_;
  int pid_ = -1;
  int output_[2];
};

std::string Undisturbed(const char* steps) {
  TemporaryFolder folder;
  TrainerRun run(folder.path(), {steps}, 0);
  run.CommitUntil(std::atoll(steps));
  EXPECT_EQ(WaitFor(run.pid()), 0);
  return run.Output();
}

TEST(CTrainer, FitsTheLine) {
  const std::string output = Undisturbed("1000");
  double slope = 0;
  double offset = 0;
  ASSERT_EQ(std::sscanf(output.c_str(), "rank 0 of 1: y = %lf x + %lf", &slope, &offset), 2)
      << output;
  EXPECT_NEAR(slope, 3, 1e-6);
  EXPECT_NEAR(offset, 2, 1e-6);
}

TEST(CTrainer, KilledAndResumedItEndsWithTheSameWeights) {
  TemporaryFolder folder;
  int64_t committed = 0;
  {
    TrainerRun run(folder.path(), {"300", "1000"}, 0);
    committed = run.CommitUntil(100);
    EXPECT_EQ(committed, 100);
    kill(run.pid(), SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(WaitFor(run.pid())));
  }
  TrainerRun run(folder.path(), {"300"}, committed);
  EXPECT_EQ(run.keeper().ReceiveType("Progress")["STEP"], "101");
  EXPECT_EQ(run.CommitUntil(300), 300);
  EXPECT_EQ(WaitFor(run.pid()), 0);
  EXPECT_EQ(run.Output(), Undisturbed("300"));
}

TEST(CTrainer, AStopWritesACheckpointAtTheAgreedStepAndEndsWith0) {
  TemporaryFolder folder;
  TrainerRun run(folder.path(), {"1000000", "1000"}, 0);
  EXPECT_EQ(run.keeper().ReceiveType("Progress")["STEP"], "1");
  run.keeper().Send({{"TYPE", "EdgeRequest"}, {"ID", "1"}, {"PURPOSE", "stop"}});
  const std::string edge = run.keeper().ReceiveType("Edge")["STEP"];
  ASSERT_NE(edge, "");
  run.keeper().Send({{"TYPE", "CheckpointAt"}, {"ID", "1"}, {"STEP", edge}, {"PURPOSE", "stop"}});
  EXPECT_EQ(run.CommitUntil(std::stoll(edge)), std::stoll(edge));
  EXPECT_EQ(run.keeper().ReceiveType("Finished")["TYPE"], "Finished");
  EXPECT_EQ(WaitFor(run.pid()), 0);
  EXPECT_TRUE(run.Output().ends_with("after step " + edge + "\n"));
}

}  // namespace
}  // namespace ddprun
