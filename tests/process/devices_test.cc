// Which GPUs and CPUs workers get, and the wait for GPU memory, with ddprun as a user runs it. The
// GPUs are those of fake_nvml.cc; HWLOC_SYNTHETIC gives the machine two NUMA nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr uint64_t kGibibyte = uint64_t{1} << 30;
constexpr const char* kTwoGpus =
    "gpu GPU-11112222 0000:FA:01.0 0 H200\ngpu GPU-33334444 0000:FB:01.0 1 H200\n";
constexpr const char* kReport =
    "echo \"rank=$RANK visible=${CUDA_VISIBLE_DEVICES-unset} omp=${OMP_NUM_THREADS-unset} "
    "$(grep Cpus_allowed_list /proc/self/status | tr '\\t' ' ')\"";

// What the made-up driver says. Replaced at once, so that no reader sees half of it.
class FakeGpus {
 public:
  explicit FakeGpus(const std::string& text) {
    char name[] = "/tmp/ddprun-fake-nvml-XXXXXX";
    const int fd = mkstemp(name);
    if (fd >= 0) close(fd);
    path_ = name;
    Say(text);
  }
  ~FakeGpus() { unlink(path_.c_str()); }
  FakeGpus(const FakeGpus&) = delete;
  FakeGpus& operator=(const FakeGpus&) = delete;

  void Say(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    rename((path_ + ".new").c_str(), path_.c_str());
  }
  std::map<std::string, std::string> Environment(
      std::map<std::string, std::string> further = {}) const {
    further["DDPRUN_FAKE_NVML"] = path_;
    further["LD_LIBRARY_PATH"] = DDPRUN_FAKE_NVML_FOLDER;
    return further;
  }

 private:
  std::string path_;
};

std::vector<std::string> Shell(std::vector<std::string> options, const std::string& script) {
  options.insert(options.end(), {"--", "/bin/bash", "-c", script});
  return options;
}

bool HasCpusZeroAndOne() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_ISSET(0, &set) && CPU_ISSET(1, &set);
}

class DevicesTest : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, DevicesTest, ::testing::Values(Mode::kTogether, Mode::kApart),
                         [](const auto& mode) {
                           return mode.param == Mode::kTogether ? "Together" : "Apart";
                         });

// L50: --gpus by index and UUID, as all workers see it.
TEST_P(DevicesTest, WorkersSeeTheChosenGpus) {
  const FakeGpus gpus(kTwoGpus);
  for (const auto& [wish, visible] : std::vector<std::pair<std::string, std::string>>{
           {"1", "visible=1 "}, {"GPU-1111", "visible=GPU-11112222 "}, {"1,0", "visible=1,0 "}}) {
    Launch launch(GetParam(), 1, Shell({"--gpus", wish}, kReport), gpus.Environment());
    const Finished finished = launch.Wait();
    EXPECT_EQ(finished.exit_code, 0) << finished.output;
    EXPECT_THAT(launch.Log(1, 0), HasSubstr(visible)) << wish;
  }
}

// TR20: in a container that was not told otherwise /dev/shm has 64 MiB, and NCCL needs more.
TEST(SharedMemoryTest, AJobOfSeveralGpusIsToldOfTooLittleBeforeItStarts) {
  const std::string inside = "mount -t tmpfs -o size=16m tmpfs /dev/shm && ";
  if (std::system(("unshare -m sh -c '" + inside + "true' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "no file system can be mounted here";
  }
  const FakeGpus gpus(kTwoGpus);
  const auto dry_run = [&](const std::string& options) {
    std::string command = "unshare -m env";
    for (const auto& [name, value] : gpus.Environment()) command += " " + name + "=" + value;
    command += " sh -c '" + inside + DdprunPath() + " " + options + " --dry-run -- true'";
    std::string text;
    FILE* output = popen(command.c_str(), "r");
    char line[512];
    while (output != nullptr && fgets(line, sizeof line, output) != nullptr) text += line;
    if (output != nullptr) pclose(output);
    return text;
  };
  EXPECT_THAT(dry_run("--nproc 2"),
              AllOf(HasSubstr("note: /dev/shm has 16"), HasSubstr("--shm-size=8g")));
  EXPECT_THAT(dry_run("--nproc 2 --device cpu"), Not(HasSubstr("/dev/shm")));
}

// The parent's choice is respected, and --gpus counts within it.
TEST_P(DevicesTest, TheParentsVariableLimitsTheChoice) {
  const FakeGpus gpus(kTwoGpus);
  Launch inside(GetParam(), 1, Shell({"--gpus", "0"}, kReport),
                gpus.Environment({{"CUDA_VISIBLE_DEVICES", "1"}}));
  EXPECT_EQ(inside.Wait().exit_code, 0);
  EXPECT_THAT(inside.Log(1, 0), HasSubstr("visible=1 "));
  Launch plain(GetParam(), 1, Shell({}, kReport),
               gpus.Environment({{"CUDA_VISIBLE_DEVICES", "1,0"}}));
  EXPECT_EQ(plain.Wait().exit_code, 0);
  EXPECT_THAT(plain.Log(1, 0), HasSubstr("visible=1,0 "));
}

TEST_P(DevicesTest, WithVirtualLocalRankEachWorkerSeesOne) {
  const FakeGpus gpus(kTwoGpus);
  Launch launch(GetParam(), 2, Shell({"--virtual-local-rank"}, kReport), gpus.Environment());
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_THAT(launch.Log(1, 0), HasSubstr("visible=0 "));
  EXPECT_THAT(launch.Log(1, 1), HasSubstr("visible=1 "));
}

// Without a word about it, workers are bound to the node next to their GPU where there are several.
TEST_P(DevicesTest, WorkersAreBoundNextToTheirGpu) {
  if (!HasCpusZeroAndOne()) GTEST_SKIP() << "needs CPUs 0 and 1";
  const FakeGpus gpus(kTwoGpus);
  const auto environment = gpus.Environment({{"HWLOC_SYNTHETIC", "numa:2 core:1 pu:1"}});
  Launch launch(GetParam(), 2, Shell({"--gpus", "1,0"}, kReport), environment);
  EXPECT_EQ(launch.Wait().exit_code, 0);
  EXPECT_THAT(launch.Log(1, 0), HasSubstr("Cpus_allowed_list: 1\n"));
  EXPECT_THAT(launch.Log(1, 1), HasSubstr("Cpus_allowed_list: 0\n"));
  // Next to both nodes, as a virtual machine says that does not know: nothing is to be gained.
  FakeGpus anywhere("gpu GPU-1 0000:FA:01.0 -2 H200\n");
  Launch free(GetParam(), 1, Shell({}, kReport),
              anywhere.Environment({{"HWLOC_SYNTHETIC", "numa:2 core:1 pu:1"}}));
  EXPECT_EQ(free.Wait().exit_code, 0);
  EXPECT_THAT(free.Log(1, 0), Not(HasSubstr("Cpus_allowed_list: 0\n")));
  Launch unbound(GetParam(), 2, Shell({"--cpu-binding", "none"}, kReport), environment);
  EXPECT_EQ(unbound.Wait().exit_code, 0);
  EXPECT_THAT(unbound.Log(1, 0), HasSubstr("omp="));
  EXPECT_THAT(unbound.Log(1, 0), Not(HasSubstr("Cpus_allowed_list: 1\n")));
}

// L18, A7, S27: the second generation starts when the driver has freed the memory of the first.
TEST_P(DevicesTest, ARestartWaitsForTheGpuMemoryOfDeadWorkers) {
  FakeGpus gpus(kTwoGpus);
  Launch launch(GetParam(), 1,
                Shell({"--max-restarts", "1"}, "if [ $DDPRUN_GENERATION = 1 ]; then sleep 60; fi"),
                gpus.Environment());
  const pid_t worker = launch.WorkerPid(1, 0);
  ASSERT_GT(worker, 0);
  const std::string held = std::string(kTwoGpus) + "used " + std::to_string(20 * kGibibyte) +
                           "\nprocess " + std::to_string(worker) + " " +
                           std::to_string(20 * kGibibyte) + "\n";
  gpus.Say(held);
  kill(worker, SIGKILL);
  ASSERT_TRUE(launch.WaitForEvent("generation_started", 2, 20).has_value());
  // It has been ordered, and would be there within milliseconds.
  EXPECT_FALSE(launch
                   .WaitFor(
                       [](const Json& event) {
                         return event["event"] == "worker_started" && event["generation"] == 2;
                       },
                       1.0)
                   .has_value());
  gpus.Say(kTwoGpus);
  EXPECT_TRUE(launch.WaitForEvent("worker_started", 2, 20).has_value());
  EXPECT_EQ(launch.Wait().exit_code, 0);
}

// One line that names pid and bytes, then it starts all the same.
TEST(DevicesOnceTest, MemoryThatDoesNotBecomeFreeIsNamedAndTheJobGoesOn) {
  FakeGpus gpus(kTwoGpus);
  Launch launch(Mode::kTogether, 1,
                Shell({"--max-restarts", "1", "--gpu-memory-wait", "0.2"},
                      "if [ $DDPRUN_GENERATION = 1 ]; then sleep 60; fi"),
                gpus.Environment());
  const pid_t worker = launch.WorkerPid(1, 0);
  ASSERT_GT(worker, 0);
  gpus.Say(std::string(kTwoGpus) + "used 21474836480\nprocess " + std::to_string(worker) +
           " 21474836480\n");
  kill(worker, SIGKILL);
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("20.0 GiB (21474836480 bytes) of GPU-33334444"),
                    HasSubstr("pid " + std::to_string(worker)), HasSubstr("starts all the same")));
}

// A GPU that has failed can hang whoever asks the driver: neither the job nor a stop waits for
// that.
TEST(DevicesOnceTest, ADriverThatHangsHoldsNobodyUp) {
  FakeGpus gpus(kTwoGpus);
  Launch launch(Mode::kTogether, 1,
                Shell({"--max-restarts", "1", "--gpu-memory-wait", "0.2"},
                      "if [ $DDPRUN_GENERATION = 1 ]; then sleep 60; fi"),
                gpus.Environment());
  Launch stopped(Mode::kTogether, 1, Shell({"--max-restarts", "1"}, "sleep 60"),
                 gpus.Environment());
  const pid_t worker = launch.WorkerPid(1, 0);
  const pid_t other = stopped.WorkerPid(1, 0);
  ASSERT_GT(worker, 0);
  ASSERT_GT(other, 0);
  gpus.Say(std::string(kTwoGpus) + "hang\n");
  kill(worker, SIGKILL);
  kill(other, SIGKILL);
  ASSERT_TRUE(stopped.WaitForEvent("generation_started", 2, 20).has_value());
  stopped.Signal(SIGTERM);
  EXPECT_EQ(stopped.Wait(4).exit_code, 143);
  const Finished finished = launch.Wait(20);
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("the GPU driver does not say which memory is in use"));
}

// A stop during the wait ends the job at once.
TEST_P(DevicesTest, AStopDuringTheWaitIsObeyed) {
  FakeGpus gpus(kTwoGpus);
  Launch launch(GetParam(), 1, Shell({"--max-restarts", "1"}, "sleep 60"), gpus.Environment());
  const pid_t worker = launch.WorkerPid(1, 0);
  ASSERT_GT(worker, 0);
  gpus.Say(std::string(kTwoGpus) + "used 21474836480\nprocess " + std::to_string(worker) +
           " 21474836480\n");
  kill(worker, SIGKILL);
  ASSERT_TRUE(launch.WaitForEvent("generation_started", 2, 20).has_value());
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(15).exit_code, 143);
}

TEST(DevicesOnceTest, BadWishesAreOneErrorAndMakeNothing) {
  const FakeGpus gpus(kTwoGpus);
  struct Case {
    std::vector<std::string> options;
    int nproc;
    std::string text;
  };
  for (const Case& c : {
           Case{{"--gpus", "0,2"}, 1, "--gpus 0,2: there is no GPU 2"},
           Case{{"--gpus", "GPU-9"}, 1, "there is no GPU GPU-9"},
           Case{{"--virtual-local-rank"}, 3, "2 GPUs can be used"},
           Case{{"--cpu-binding", "numa"}, 1, "core-complex"},
           Case{{"--cpu-binding", "exclusive", "--device", "cpu"}, 500, "--cpu-binding exclusive"},
       }) {
    Launch launch(Mode::kTogether, c.nproc, Shell(c.options, "true"), gpus.Environment());
    const Finished finished = launch.Wait();
    EXPECT_EQ(finished.exit_code, 2) << c.text;
    EXPECT_THAT(finished.output, HasSubstr(c.text));
    EXPECT_NE(access(launch.run_dir().c_str(), F_OK), 0) << c.text;
  }
  Launch hidden(Mode::kTogether, 1, Shell({"--gpus", "1"}, "true"),
                gpus.Environment({{"CUDA_VISIBLE_DEVICES", "GPU-3333"}}));
  EXPECT_THAT(hidden.Wait().output, AllOf(HasSubstr("--gpus 1: 1 is not among"),
                                          HasSubstr("CUDA_VISIBLE_DEVICES=GPU-3333"),
                                          HasSubstr("0 is GPU 1 (GPU-33334444)")));
}

TEST(DevicesOnceTest, ADryRunShowsThePlaceOfEachRank) {
  if (!HasCpusZeroAndOne()) GTEST_SKIP() << "needs CPUs 0 and 1";
  const FakeGpus gpus(kTwoGpus);
  Launch launch(Mode::kTogether, 2, Shell({"--dry-run"}, "true"),
                gpus.Environment({{"HWLOC_SYNTHETIC", "numa:2 core:1 pu:1"}}));
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_THAT(finished.output, AllOf(HasSubstr("GPU 0, NUMA node 0, CPUs 0"),
                                     HasSubstr("GPU 1, NUMA node 1, CPUs 1"),
                                     HasSubstr("OMP_NUM_THREADS=1 for each worker")));
}

}  // namespace
}  // namespace ddprun::testing
