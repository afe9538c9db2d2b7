// Unmodified PyTorch and Paddle programs (examples/pytorch, examples/paddle) run, lose a rank, and
// end as if nothing had happened.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using Json = nlohmann::json;

// Starting Python with PyTorch takes seconds on a busy machine.
constexpr double kProgramSecondsMax = 180;

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}
std::string Python() {
  return FromEnvironment("DDPRUN_PYTHON");
}
std::string PaddlePython() {
  const std::string python = FromEnvironment("DDPRUN_PADDLE_PYTHON");
  return !python.empty() && access(python.c_str(), X_OK) == 0 ? python : "";
}

std::vector<std::string> Program(const std::string& python, const std::string& script,
                                 std::vector<std::string> arguments) {
  std::vector<std::string> program = {"--", python, "-u",
                                      FromEnvironment("DDPRUN_SOURCE") + "/examples/" + script};
  program.insert(program.end(), arguments.begin(), arguments.end());
  return program;
}

// The last line of a log that holds `text`.
std::string LastLineWith(const std::string& log, const std::string& text) {
  const size_t at = log.rfind(text);
  if (at == std::string::npos) return "";
  return log.substr(at, log.find('\n', at) - at);
}

bool WaitForLine(Launch& launch, int generation, const std::string& text) {
  return WaitUntil([&] { return launch.Log(generation, 0).find(text) != std::string::npos; },
                   kProgramSecondsMax);
}

class PyTorchProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Python().empty()) GTEST_SKIP() << "no Python with PyTorch was configured (DDPRUN_PYTHON)";
  }
};

// Kills a rank of generation 1 when `line` is there, and compares the last line with that of an
// undisturbed run.
void KillAndCompare(const std::string& script, const std::vector<std::string>& arguments, int rank,
                    const std::string& line) {
  Launch calm(Mode::kTogether, 2, Program(Python(), script, arguments));
  ASSERT_EQ(calm.Wait(kProgramSecondsMax).exit_code, 0) << calm.Log(1, 0);
  const std::string expected = LastLineWith(calm.Log(1, 0), "done at step");
  ASSERT_FALSE(expected.empty());

  Launch launch(Mode::kTogether, 2, Program(Python(), script, arguments));
  ASSERT_TRUE(WaitForLine(launch, 1, line)) << launch.Log(1, 0);
  kill(launch.WorkerPid(1, rank), SIGKILL);
  EXPECT_EQ(launch.Wait(kProgramSecondsMax).exit_code, 0) << launch.Log(2, 0);
  EXPECT_EQ(LastLineWith(launch.Log(2, 0), "done at step"), expected);
  const Json result = launch.Result();
  EXPECT_EQ(result["generations"], 2);
  ASSERT_EQ(result["failures"].size(), 1u);
  // L63: the survivor's Gloo error is no root cause.
  EXPECT_EQ(result["failures"][0]["rank"], rank);
  EXPECT_EQ(result["failures"][0]["signal"], "SIGKILL");
}

TEST_F(PyTorchProgram, PlainDdpEndsAsIfNothingHadHappened) {
  KillAndCompare("pytorch/ddp.py", {"--steps", "120"}, 1, "step 40 ");
}

TEST_F(PyTorchProgram, FullyShardedDataParallelEndsAsIfNothingHadHappened) {
  KillAndCompare("pytorch/fsdp.py", {"--steps", "60"}, 0, "step 25 ");
}

// L62: the error that @record wrote is the root cause, with its traceback; the others are
// secondary.
TEST_F(PyTorchProgram, AnErrorUnderRecordIsShownWithItsTraceback) {
  Launch launch(Mode::kTogether, 2,
                Program(Python(), "pytorch/elastic.py", {"--fail-at-epoch", "2", "--epochs", "4"}));
  const Finished finished = launch.Wait(kProgramSecondsMax);
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_NE(launch.Log(2, 0).find("begins at epoch 2, restart 1"), std::string::npos);
  const Json failure = launch.Result()["failures"][0];
  EXPECT_EQ(failure["rank"], 1);
  EXPECT_EQ(failure["exit_code"], 1);
  EXPECT_NE(
      failure["error"]["message"].get<std::string>().find("the sample of epoch 2 cannot be read"),
      std::string::npos)
      << failure.dump(1);
  EXPECT_NE(failure["error"]["traceback"].get<std::string>().find("in run"), std::string::npos);
}

TEST_F(PyTorchProgram, AnErrorThatComesAlwaysEndsTheJobWithItsReport) {
  Launch launch(Mode::kTogether, 2, [] {
    auto program =
        Program(Python(), "pytorch/elastic.py", {"--fail-at-epoch", "1", "--fail-always"});
    program.insert(program.begin(), {"--max-restarts", "0"});
    return program;
  }());
  const Finished finished = launch.Wait(kProgramSecondsMax);
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_NE(finished.output.find("the sample of epoch 1 cannot be read"), std::string::npos)
      << finished.output;
  EXPECT_EQ(launch.Result()["first_failure"]["rank"], 1);
}

// A Paddle program finds its ranks, its peers and its master.
TEST(PaddleProgram, DataParallelRunsUnchanged) {
  if (PaddlePython().empty()) GTEST_SKIP() << "Paddle is not installed (DDPRUN_PADDLE_PYTHON)";
  Launch launch(Mode::kTogether, 2, Program(PaddlePython(), "paddle/data_parallel.py", {}));
  const Finished finished = launch.Wait(kProgramSecondsMax);
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  for (int rank : {0, 1}) {
    EXPECT_NE(
        launch.Log(1, rank).find("rank " + std::to_string(rank) + " of 2, sum of the ranks 1"),
        std::string::npos)
        << launch.Log(1, rank);
  }
}

}  // namespace
}  // namespace ddprun::testing
