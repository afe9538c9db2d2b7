// Programs that use libddprun, and the built-in trainer: kill, resume, stop, checkpoints. Every
// test runs with coordinator and agent in one process and apart over TCP.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

class RecoveryTest : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, RecoveryTest, ::testing::Values(Mode::kTogether, Mode::kApart),
                         [](const auto& mode) {
                           return mode.param == Mode::kTogether ? "Together" : "Apart";
                         });

constexpr int kSteps = 300;

// The example in C: checkpoints every 50 steps, about 3 ms a step.
std::vector<std::string> CTrainer(std::vector<std::string> options = {},
                                  const std::string& microseconds = "3000") {
  options.insert(options.end(),
                 {"--", ExamplePath("c_trainer"), std::to_string(kSteps), microseconds});
  return options;
}

// The same numbers more slowly: still far from its end when this process, on a busy machine, is
// late.
std::vector<std::string> SlowCTrainer(std::vector<std::string> options = {}) {
  return CTrainer(std::move(options), "20000");
}

// Its last line on rank 0: the final state in full precision.
std::string Undisturbed(Mode mode) {
  Launch launch(mode, 2, CTrainer());
  EXPECT_EQ(launch.Wait().exit_code, 0);
  return launch.Log(1, 0);
}

std::optional<Json> Committed(Launch& launch, int generation) {
  return launch.WaitForEvent("checkpoint_committed", generation, 30);
}

int Count(const std::vector<Json>& events, const std::string& name) {
  int count = 0;
  for (const Json& event : events) count += event["event"] == name;
  return count;
}

// R1, C5, L26: after a kill all ranks go on from the same committed step, and end as if nothing had
// happened.
TEST_P(RecoveryTest, AKilledRankCostsOneGenerationAndNothingElse) {
  const std::string expected = Undisturbed(GetParam());
  for (int rank : {0, 1}) {
    Launch launch(GetParam(), 2, CTrainer());
    ASSERT_TRUE(Committed(launch, 1));
    kill(launch.WorkerPid(1, rank), SIGKILL);
    EXPECT_EQ(launch.Wait().exit_code, 0);
    EXPECT_EQ(launch.Log(2, 0), expected);
    auto second = launch.WaitForEvent("generation_started", 2, 1);
    ASSERT_TRUE(second);
    EXPECT_GE((*second)["resume_step"], 50);
    auto first_step = launch.WaitForEvent("training_progressed", 2, 1);
    ASSERT_TRUE(first_step);
    EXPECT_EQ((*first_step)["step"].get<int>(), (*second)["resume_step"].get<int>() + 1);
    EXPECT_TRUE(first_step->contains("time_lost_s"));
  }
}

// C8, S24: a stop writes a checkpoint of a step that all ranks agree on; --resume goes on exactly
// there.
TEST_P(RecoveryTest, AStopWritesACheckpointAndResumeGoesOnThere) {
  const std::string expected = Undisturbed(GetParam());
  Launch launch(GetParam(), 2, SlowCTrainer());
  ASSERT_TRUE(launch.WaitForEvent("training_progressed", 1, 20));
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(10).exit_code, 143);
  EXPECT_EQ(launch.Result()["status"], "stopped");
  auto committed = Committed(launch, 1);
  ASSERT_TRUE(committed);
  Launch again(GetParam(), 2, CTrainer({"--resume"}), launch.run_dir());
  EXPECT_EQ(again.Wait().exit_code, 0);
  auto second = again.WaitForEvent("generation_started", 2, 1);
  ASSERT_TRUE(second) << "generations go on counting";
  EXPECT_EQ((*second)["resume_step"], (*committed)["step"]);
  EXPECT_EQ(again.Log(2, 0), expected);
}

// L12: SIGUSR2 asks for a checkpoint, and the job goes on.
TEST_P(RecoveryTest, Usr2WritesACheckpointOfAnAgreedStep) {
  Launch launch(GetParam(), 2, SlowCTrainer());
  ASSERT_TRUE(launch.WaitForEvent("training_progressed", 1, 20));
  launch.Signal(SIGUSR2);
  auto asked = launch.WaitFor(
      [](const Json& e) {
        return e["event"] == "checkpoint_committed" && e["step"].get<int>() % 50 != 0;
      },
      10);
  ASSERT_TRUE(asked);
  // And again, when that one is done with.
  launch.Signal(SIGUSR2);
  EXPECT_TRUE(launch.WaitFor(
      [&](const Json& e) {
        return e["event"] == "checkpoint_committed" && e["step"].get<int>() % 50 != 0 &&
               e["step"] != (*asked)["step"];
      },
      10));
  EXPECT_EQ(launch.Wait().exit_code, 0);
  EXPECT_EQ(launch.Result()["generations"], 1);
}

// However often it is asked, at most one checkpoint is on its way, and the workers take no harm.
TEST_P(RecoveryTest, AStormOfUsr2IsNotFatal) {
  Launch launch(GetParam(), 2, CTrainer());
  ASSERT_TRUE(launch.WaitForEvent("training_progressed", 1, 20));
  for (int i = 0; i < 40; ++i) {
    launch.Signal(SIGUSR2);
    // Signals of one kind merge while they wait: let the launcher take each.
    const std::string status = "/proc/" + std::to_string(launch.pid()) + "/status";
    WaitUntil(
        [&] { return ReadText(status).find("ShdPnd:\t0000000000000000") != std::string::npos; }, 1);
  }
  Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_EQ(launch.Result()["generations"], 1) << finished.output;
}

// A run folder is one job's, also when the second comes while the first is still looking at its
// data.
TEST_P(RecoveryTest, AFolderThatHoldsAJobIsRefused) {
  Launch launch(GetParam(), 2, CTrainer());
  EXPECT_EQ(launch.Wait().exit_code, 0);
  const std::string before = ReadText(launch.run_dir() + "/events.jsonl");
  Launch again(Mode::kTogether, 2, CTrainer(), launch.run_dir());
  EXPECT_EQ(again.Wait().exit_code, 2);
  EXPECT_EQ(ReadText(launch.run_dir() + "/events.jsonl"), before);
}

// S1, A4: kill -9 of the launcher, then --resume.
TEST_P(RecoveryTest, TheLauncherMayBeKilledAndTheJobResumed) {
  const std::string expected = Undisturbed(GetParam());
  Launch launch(GetParam(), 2, CTrainer());
  ASSERT_TRUE(Committed(launch, 1));
  const pid_t workers[] = {launch.WorkerPid(1, 0), launch.WorkerPid(1, 1)};
  kill(launch.agent_pid(), SIGKILL);
  launch.Signal(SIGKILL);
  for (pid_t pid : workers) EXPECT_TRUE(WaitGone(pid, 2));
  launch.Wait(5);
  Launch again(GetParam(), 2, CTrainer({"--resume"}), launch.run_dir());
  EXPECT_EQ(again.Wait().exit_code, 0);
  EXPECT_EQ(again.Log(2, 0), expected);
}

// C1, C2, C6: a damaged newest checkpoint is set aside, and the one before is used.
TEST_P(RecoveryTest, ADamagedNewestCheckpointIsRejectedOnResume) {
  const std::string expected = Undisturbed(GetParam());
  Launch launch(GetParam(), 2, CTrainer());
  ASSERT_TRUE(launch.WaitFor(
      [](const Json& e) { return e["event"] == "checkpoint_committed" && e["step"] == 150; }, 20));
  kill(launch.agent_pid(), SIGKILL);
  launch.Signal(SIGKILL);
  launch.Wait(5);
  uint64_t newest = 0;
  for (const auto& entry : fs::directory_iterator(launch.run_dir() + "/checkpoints")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-")) newest = std::max<uint64_t>(newest, std::stoull(name.substr(5)));
  }
  const std::string path = launch.run_dir() + "/checkpoints/step-" + std::to_string(newest);
  {
    std::fstream file(path + "/line-1.bin", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3);
    file.put('X');
  }
  Launch again(GetParam(), 2, CTrainer({"--resume"}), launch.run_dir());
  EXPECT_EQ(again.Wait().exit_code, 0);
  auto rejected = again.WaitForEvent("checkpoint_rejected", 2, 1);
  ASSERT_TRUE(rejected);
  EXPECT_EQ((*rejected)["step"], newest);
  auto second = again.WaitForEvent("generation_started", 2, 1);
  ASSERT_TRUE(second);
  EXPECT_EQ((*second)["resume_step"], newest - 50);
  EXPECT_EQ(again.Log(2, 0), expected);
}

// L32, D8: a job that does not get further stops with 93, whatever the budget.
TEST_P(RecoveryTest, NoProgressInThreeRestartsEndsWith93) {
  const std::string script = "if [ $DDPRUN_GENERATION = 1 ]; then exec " +
                             ExamplePath("c_trainer") + " 100000 3000; fi; exit 1";
  Launch launch(GetParam(), 2, {"--max-restarts", "10", "--", "/bin/bash", "-c", script});
  ASSERT_TRUE(Committed(launch, 1));
  kill(launch.WorkerPid(1, 0), SIGKILL);
  EXPECT_EQ(launch.Wait(40).exit_code, 93);
  EXPECT_EQ(launch.Result()["failure_kind"], "no_progress");
  EXPECT_EQ(launch.Result()["restarts"], 3);
}

// A rank that cannot write vetoes the checkpoint; the job goes on, the event says why.
TEST_P(RecoveryTest, ACheckpointThatCannotBeWrittenIsDroppedAndTheJobGoesOn) {
  Launch launch(GetParam(), 2, CTrainer());
  ASSERT_TRUE(Committed(launch, 1));
  // Where the staging folder should be made there is a file now.
  const std::string staging = launch.run_dir() + "/checkpoints/.staging";
  ASSERT_TRUE(WaitUntil(
      [&] {
        std::error_code error;
        fs::remove_all(staging, error);
        std::ofstream(staging).put('x');
        return fs::is_regular_file(staging);
      },
      5));
  EXPECT_EQ(launch.Wait().exit_code, 0);
  auto failed = launch.WaitForEvent("checkpoint_failed", 1, 1);
  ASSERT_TRUE(failed);
  EXPECT_FALSE((*failed)["reason"].get<std::string>().empty());
  EXPECT_EQ(launch.Result()["generations"], 1);
}

// C9, TR29, TR31: the built-in trainer ends with the digest of an undisturbed run, also after two
// kills.
TEST_P(RecoveryTest, TheTrainersWeightsAreBitIdenticalAfterKills) {
  if (!fs::exists(fs::path(DdprunPath()).parent_path() / "ddp-worker")) {
    GTEST_SKIP() << "built without ddp-worker";
  }
  const char* source = std::getenv("DDPRUN_SOURCE");
  ASSERT_NE(source, nullptr);
  const std::vector<std::string> job = {"--set",
                                        "train.steps=40",
                                        "--set",
                                        "checkpoint.every_steps=10",
                                        "--set",
                                        "train.evaluate=false",
                                        std::string(source) + "/examples/fashion_mnist.cfg"};
  Launch calm(GetParam(), 2, job);
  ASSERT_EQ(calm.Wait(100).exit_code, 0);
  Launch launch(GetParam(), 2, job);
  for (int generation : {1, 2}) {
    ASSERT_TRUE(Committed(launch, generation));
    kill(launch.WorkerPid(generation, generation - 1), SIGKILL);
  }
  EXPECT_EQ(launch.Wait(100).exit_code, 0);
  EXPECT_EQ(launch.Result()["generations"], 3);
  EXPECT_EQ(launch.Result()["weights_digest"], calm.Result()["weights_digest"]);
  EXPECT_EQ(Count(launch.Events(), "restart_scheduled"), 2);
}

}  // namespace
}  // namespace ddprun::testing
