// What the built-in trainer notices in whole jobs: weights that differ, numbers that are not
// finite, a slow rank; and the best checkpoint as it lies in the run folder.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

std::vector<std::string> Job(const std::vector<std::string>& settings) {
  const char* source = std::getenv("DDPRUN_SOURCE");
  std::vector<std::string> job;
  for (const std::string& setting : settings) job.insert(job.end(), {"--set", setting});
  job.push_back(std::string(source == nullptr ? "." : source) + "/examples/fashion_mnist.cfg");
  return job;
}

// Bytes of a tensor in a safetensors file (docs/checkpoints.md).
std::string TensorBytes(const std::string& path, const std::string& name) {
  const std::string file = ReadText(path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  const Json header = Json::parse(file.substr(8, header_bytes));
  const size_t begin = header[name]["data_offsets"][0], end = header[name]["data_offsets"][1];
  return file.substr(8 + header_bytes + begin, end - begin);
}

// Saves the TorchScript module of this class; "" without a Python.
std::string SaveModule(const std::string& name, const std::string& body) {
  const char* python = std::getenv("DDPRUN_PYTHON");
  if (python == nullptr || *python == '\0') return "";
  const std::string base = ::testing::TempDir() + name;
  std::ofstream(base + ".py") << "import sys, torch\n"
                              << body << "torch.jit.script(" << name << "()).save(sys.argv[1])\n";
  const std::string command = std::string(python) + " " + base + ".py " + base + ".pt";
  EXPECT_EQ(std::system(command.c_str()), 0);
  return base + ".pt";
}

// Flips a bit at each place where these bytes lie in the memory of a process, as a cosmic ray
// would. How many there were.
int FlipBit(pid_t pid, const std::string& bytes) {
  const std::string folder = "/proc/" + std::to_string(pid);
  const int memory = open((folder + "/mem").c_str(), O_RDWR | O_CLOEXEC);
  if (memory < 0) return -1;
  int flipped = 0;
  std::istringstream maps(ReadText(folder + "/maps"));
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    char mode[5] = {};
    if (sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, mode) != 3) continue;
    if (std::string(mode) != "rw-p" || end - begin > (1U << 30)) continue;
    std::string content(end - begin, '\0');
    const ssize_t got = pread(memory, content.data(), content.size(), static_cast<off_t>(begin));
    if (got <= 0) continue;
    content.resize(static_cast<size_t>(got));
    for (size_t at = content.find(bytes); at != std::string::npos;
         at = content.find(bytes, at + 1)) {
      const char changed = static_cast<char>(bytes[2] ^ 1);
      flipped += pwrite(memory, &changed, 1, static_cast<off_t>(begin + at + 2)) == 1;
    }
  }
  close(memory);
  return flipped;
}

// Silent divergence: a bit of one rank's weights flips in memory. The rank is named, nothing of the
// spoilt state is saved, and the job goes on from the checkpoint before.
TEST(TrainerChecks, ADifferingWeightIsFoundWithItsRank) {
  // Steps that are too small to change a weight, so that the bytes to look for are known.
  Launch launch(
      Mode::kTogether, 3,
      Job({"train.optimizer=sgd", "train.lr=1e-30", "train.steps=1000000", "train.evaluate=false",
           "data.batch_size=8", "checkpoint.every_steps=20", "checks.fingerprint_every_steps=20"}));
  const auto committed = launch.WaitForEvent("checkpoint_committed", 1, 60);
  ASSERT_TRUE(committed);
  const std::string weights =
      TensorBytes((*committed)["path"].get<std::string>() + "/model.safetensors", "fc.weight");
  const int flipped = FlipBit(launch.WorkerPid(1, 1), weights.substr(4096, 64));
  if (flipped < 0) GTEST_SKIP() << "the memory of another process may not be written here";
  ASSERT_GE(flipped, 1);
  const auto ended = launch.WaitForEvent("generation_ended", 1, 60);
  ASSERT_TRUE(ended);
  EXPECT_EQ((*ended)["rank"], 1) << *ended;
  const std::string reason = (*ended)["reason"];
  EXPECT_NE(reason.find("the weights of rank 1 differ from those of the other ranks, first in "
                        "fc.weight"),
            std::string::npos)
      << reason;
  EXPECT_TRUE(launch.WaitForEvent("training_progressed", 2, 60)) << "it is worth a restart";
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(60).exit_code, 143);
}

// MB: numbers that are not finite end the job at once, with step and place; a restart would do the
// same again.
TEST(TrainerChecks, ALossThatIsNotFiniteEndsTheJobWithStepAndPlace) {
  Launch launch(Mode::kTogether, 2,
                Job({"train.optimizer=sgd", "train.lr=1e6", "train.steps=50",
                     "train.evaluate=false", "data.batch_size=8", "checkpoint.every_steps=1"}));
  const Finished finished = launch.Wait(60);
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  const Json result = launch.Result();
  EXPECT_EQ(result["generations"], 1) << "no restart";
  EXPECT_EQ(result["failure_kind"], "worker_failed");
  const std::string reason = result["first_failure"]["reason"];
  EXPECT_NE(reason.find("not finite on rank"), std::string::npos) << reason;
  EXPECT_NE(reason.find("step "), std::string::npos) << reason;
  EXPECT_NE(reason.find("the first output that is not finite is that of block"), std::string::npos)
      << reason;
}

// The gradients of such a loss may well be finite.
TEST(TrainerChecks, AnInfiniteLossWithFiniteGradientsEndsTheJobToo) {
  const std::string module = SaveModule("Infinite", R"py(
class Infinite(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(784, 10)
    def forward(self, x):
        return self.fc(x.flatten(1))
    @torch.jit.export
    def loss(self, output, target):
        return torch.nn.functional.cross_entropy(output, target) + float("inf")
)py");
  if (module.empty()) GTEST_SKIP() << "no DDPRUN_PYTHON";
  Launch launch(Mode::kTogether, 1,
                Job({"model.name=torchscript", "model.file=" + module, "train.steps=5",
                     "train.evaluate=false", "data.batch_size=8"}));
  const Finished finished = launch.Wait(60);
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  const std::string reason = launch.Result()["first_failure"]["reason"];
  EXPECT_NE(reason.find("step 1: the loss is not finite"), std::string::npos) << reason;
}

// What LibTorch calls a bad value is one in the next try, too.
TEST(TrainerChecks, ABadValueThatLibTorchReportsEndsTheJob) {
  const std::string module = SaveModule("Replacing", R"py(
class Replacing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(784, 10)
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, x):
        if self.training:
            self.seen = self.seen + x.size(0)
        return self.fc(x.flatten(1))
)py");
  if (module.empty()) GTEST_SKIP() << "no DDPRUN_PYTHON";
  Launch launch(Mode::kTogether, 1,
                Job({"model.name=torchscript", "model.file=" + module, "train.steps=5",
                     "train.evaluate=false", "data.batch_size=8"}));
  const Finished finished = launch.Wait(60);
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  const Json result = launch.Result();
  EXPECT_EQ(result["generations"], 1) << "no restart";
  const std::string reason = result["first_failure"]["reason"];
  EXPECT_NE(reason.find("[model] file: forward replaces the buffer 'seen'"), std::string::npos)
      << reason;
  EXPECT_NE(finished.output.find("an error that a restart cannot mend"), std::string::npos)
      << finished.output;
}

// From a process's step page (proto/worker_protocol.md): the newest collective, "" when none is
// waited for.
std::string PendingCollective(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  std::istringstream maps(ReadText(folder + "/maps"));
  for (std::string line; std::getline(maps, line);) {
    if (line.find("ddprun-step-page") == std::string::npos) continue;
    const int memory = open((folder + "/mem").c_str(), O_RDONLY | O_CLOEXEC);
    char page[128] = {};
    const auto begin = static_cast<off_t>(std::stoull(line, nullptr, 16));
    const bool whole = pread(memory, page, sizeof page - 1, begin) == sizeof page - 1;
    close(memory);
    uint64_t started = 0, finished = 0;
    std::memcpy(&started, page + 40, sizeof started);
    std::memcpy(&finished, page + 48, sizeof finished);
    if (!whole || started <= finished) return "";
    std::string text = page + 56;
    text.append(" ").append(std::to_string(started));
    return text;
  }
  return "";
}

// TR: SyncBN waits for its peers in the middle of forward and backward, through autograd's threads;
// the end of a peer must come through there as well.
TEST(TrainerChecks, ARankThatDiesWhileItsPeerWaitsInSyncBatchNormCostsOneGeneration) {
  Launch launch(
      Mode::kTogether, 2,
      Job({"model.name=resnet18", "data.kind=synthetic", "data.image_size=8", "data.samples=64",
           "data.batch_size=2", "parallel.sync_bn=on", "train.optimizer=sgd", "train.epochs=1000",
           "train.evaluate=false", "checkpoint.every_steps=2", "log.every_steps=1"}));
  ASSERT_TRUE(launch.WaitForEvent("checkpoint_committed", 1, 120));
  const pid_t waiting = launch.WorkerPid(1, 0), dying = launch.WorkerPid(1, 1);
  // Stopped anywhere, it is mostly SyncBN where its peer comes to stand.
  std::string last;
  int seen = 0;
  const bool waits = WaitUntil(
      [&] {
        const std::string now = PendingCollective(waiting);
        const bool same = !now.empty() && now == last;
        last = now;
        seen = same ? seen + 1 : 0;
        if (seen == 50 && now.starts_with("sync_batch_norm ")) return true;
        if (seen >= 50) {
          kill(dying, SIGCONT);
          seen = 0;
        } else if (seen == 0) {
          kill(dying, SIGSTOP);
        }
        return false;
      },
      120);
  kill(dying, SIGKILL);
  ASSERT_TRUE(waits) << last;
  const auto ended = launch.WaitForEvent("generation_ended", 1, 60);
  ASSERT_TRUE(ended);
  EXPECT_EQ((*ended)["rank"], 1) << *ended;
  EXPECT_EQ((*ended)["reason"], "was killed by SIGKILL") << *ended;
  const auto second = launch.WaitForEvent("generation_started", 2, 60);
  ASSERT_TRUE(second);
  EXPECT_GE((*second)["resume_step"], 2);
  EXPECT_TRUE(launch.WaitForEvent("training_progressed", 2, 120)) << launch.Log(2, 0);
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(120).exit_code, 143);
}

// MA: the next try would need as much; what would help is where a person looks.
TEST(TrainerChecks, NoMemoryEndsTheJobWithAdvice) {
  const std::string module = SaveModule("Hungry", R"py(
class Hungry(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(784, 10)
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls.add_(1)
        x = self.fc(x.flatten(1))
        if bool(self.calls > 5):
            x = x + torch.zeros([1 << 45]).sum()
        return x
)py");
  if (module.empty()) GTEST_SKIP() << "no DDPRUN_PYTHON";
  Launch launch(Mode::kTogether, 2,
                Job({"model.name=torchscript", "model.file=" + module, "train.steps=50",
                     "train.evaluate=false", "data.batch_size=8", "checkpoint.every_steps=1"}));
  const Finished finished = launch.Wait(60);
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  const Json result = launch.Result();
  EXPECT_EQ(result["generations"], 1) << "no restart";
  const std::string reason = result["first_failure"]["reason"];
  for (const std::string& text : {reason, finished.output}) {
    EXPECT_NE(text.find("out of memory: can't allocate memory: you tried to allocate "
                        "140737488355328 bytes"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("by a dry run on the CPU it needs "), std::string::npos) << text;
    EXPECT_NE(text.find("[data] batch_size = 4 with [train] accumulation_steps = 2: "),
              std::string::npos)
        << text;
  }
}

TEST(TrainerChecks, TheSameIsIgnoredOnRequest) {
  Launch launch(Mode::kTogether, 2,
                Job({"train.optimizer=sgd", "train.lr=1e6", "train.steps=5", "train.evaluate=false",
                     "data.batch_size=8", "checks.non_finite=ignore"}));
  const Finished finished = launch.Wait(60);
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
}

void ExpectTheSlowRankIsNamed(const std::vector<std::string>& job) {
  Launch launch(Mode::kTogether, 2, job);
  ASSERT_TRUE(launch.WaitForEvent("training_progressed", 1, 60));
  const pid_t slow = launch.WorkerPid(1, 1);
  int turn = 0;
  // Turns about: most of the time it stands still.
  EXPECT_TRUE(WaitUntil(
      [&] {
        kill(slow, ++turn % 4 == 0 ? SIGCONT : SIGSTOP);
        return launch.Log(1, 0).find("rank 1 on ") != std::string::npos;
      },
      60))
      << launch.Log(1, 0);
  kill(slow, SIGCONT);
  EXPECT_NE(launch.Log(1, 0).find("times as long for its part of a step"), std::string::npos);
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(60).exit_code, 143);
}

// A rank that is held up again and again (here by signals) makes all wait; it is named.
TEST(TrainerChecks, ASlowRankIsNamed) {
  ExpectTheSlowRankIsNamed(
      Job({"train.steps=1000000", "train.evaluate=false", "data.batch_size=32", "data.workers=0",
           "log.every_steps=5", "checkpoint.every_steps=0"}));
}

// Also where the others wait for it in each layer.
TEST(TrainerChecks, ASlowRankIsNamedWithSyncBatchNorm) {
  ExpectTheSlowRankIsNamed(
      Job({"model.name=resnet18", "data.kind=synthetic", "data.image_size=8", "data.samples=4096",
           "data.batch_size=2", "data.workers=0", "parallel.sync_bn=on", "train.optimizer=sgd",
           "train.steps=1000000", "train.evaluate=false", "log.every_steps=3",
           "checkpoint.every_steps=0"}));
}

// MA14: the best checkpoint outlives checkpoint.keep, and a link leads to it.
TEST(TrainerChecks, TheBestCheckpointIsKeptUnderItsLink) {
  Launch launch(Mode::kTogether, 2,
                Job({"train.steps=60", "train.evaluate_every_steps=20", "train.lr=0.003",
                     "checkpoint.best=true", "checkpoint.keep=1", "checkpoint.every_steps=10",
                     "checkpoint.async=false"}));
  const Finished finished = launch.Wait(120);
  ASSERT_EQ(finished.exit_code, 0) << finished.output;
  const int64_t best = launch.Result()["metrics"]["best_step"];
  const std::string checkpoints = launch.run_dir() + "/checkpoints";
  EXPECT_EQ(fs::read_symlink(checkpoints + "/best"), "step-" + std::to_string(best));
  EXPECT_EQ(Json::parse(ReadText(checkpoints + "/best/best.json"))["step"], best);
  EXPECT_TRUE(fs::exists(checkpoints + "/step-60/manifest.json")) << "the last one";
  EXPECT_FALSE(fs::exists(checkpoints + "/step-50")) << "checkpoint.keep is 1";
}

}  // namespace
}  // namespace ddprun::testing
