#include "launcher/cli/doctor_software.h"

#include <unistd.h>

#include <chrono>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "launcher/agent/tool.h"
#include "launcher/net/text.h"
#include "launcher/placement/gpus.h"
#include "launcher/placement/nvml.h"

namespace ddprun::doctor {
namespace {

constexpr std::chrono::seconds kStartMax{6};
constexpr size_t kOutputBytesMax = 4096;
constexpr char kNvidia[] = "0x10de";

// Reads torch's version without loading torch, which takes seconds.
constexpr char kAskPython[] = R"(
import importlib.util, os, platform, sys
words = [platform.python_version()]
spec = importlib.util.find_spec('torch')
if spec and spec.origin:
    scope = {}
    exec(open(os.path.join(os.path.dirname(spec.origin), 'version.py')).read(), scope)
    words.append('torch=' + str(scope.get('__version__')))
    words.append('cuda=' + str(scope.get('cuda')))
    try:
        import importlib.metadata as m
        for d in m.distributions():
            name = (d.metadata['Name'] or '').lower().replace('_', '-')
            if name.startswith('nvidia-nccl-'): words.append('nccl=' + d.version)
    except Exception: pass
print(*words)
)";

bool GpuOnBus(const World& world) {
  const std::string root = "/sys/bus/pci/devices";
  for (const std::string& device : ListWorldFolder(world, root)) {
    const std::string folder = absl::StrCat(root, "/", device);
    // Class 03: display controllers; 0302 is what GPUs of servers are.
    if (ReadWorldFile(world, folder + "/vendor") == kNvidia &&
        absl::StartsWith(ReadWorldFile(world, folder + "/class"), "0x03")) {
      return true;
    }
  }
  return false;
}

Finding JudgeGpus(const Driver& driver) {
  constexpr char kName[] = "GPUs";
  if (driver.gpus.empty()) {
    return Problem(kName, absl::StrCat("none, though the driver is there (", driver.looked_at, ")"),
                   "workers run on CPUs here",
                   "nvidia-smi -L; in a container --gpus all, or nvidia.com/gpu in the pod's "
                   "limits");
  }
  const std::set<std::string> models(driver.gpus.begin(), driver.gpus.end());
  std::string seen = absl::StrCat(driver.gpus.size(), " × ", absl::StrJoin(models, ", "));
  if (driver.visible_devices) {
    absl::StrAppend(&seen, ", CUDA_VISIBLE_DEVICES=", *driver.visible_devices);
  }
  if (models.size() > 1) {
    return Note(kName, seen, "the slowest one sets the pace, and results of unlike ones differ",
                "--gpus chooses");
  }
  return Ok(kName, seen);
}

std::string FirstLine(const std::string& text) {
  return net::Shown(text.substr(0, text.find('\n')), 200);
}

std::map<std::string, std::string> WordsOf(const std::string& output) {
  std::map<std::string, std::string> words;
  for (const absl::string_view word : absl::StrSplit(FirstLine(output), ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(word, absl::MaxSplits('=', 1));
    words[pair.second.empty() ? "python" : pair.first] =
        pair.second.empty() ? pair.first : pair.second;
  }
  return words;
}

}  // namespace

int OldestDriverFor(const std::string& cuda) {
  switch (LeadingNumber(cuda).value_or(0)) {
    case 11:
      return 450;
    case 12:
      return 525;
    case 13:
      return 580;
    default:
      return 0;
  }
}

std::vector<Finding> JudgeDriver(const Driver& driver) {
  constexpr char kName[] = "NVIDIA driver";
  if (driver.version.empty()) {
    if (!driver.gpu_on_bus) {
      return {Ok(kName, "none, and no GPU of NVIDIA's on the bus", "workers run on CPUs here")};
    }
    return {Problem(
        kName, absl::StrCat("none that answers (", driver.looked_at, "), but a GPU is on the bus"),
        "workers run on CPUs here",
        "install the driver, or modprobe nvidia; in a container "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility")};
  }
  const int oldest = OldestDriverFor(driver.cuda);
  std::vector<Finding> findings;
  if (oldest > 0 && LeadingNumber(driver.version).value_or(oldest) < oldest) {
    findings.push_back(Problem(kName, driver.version,
                               absl::StrCat("the built-in trainer uses CUDA ", driver.cuda,
                                            ", which needs driver ", oldest, " or newer"),
                               "a newer driver, or NVIDIA's cuda-compat package on cards for data "
                               "centres"));
  } else {
    findings.push_back(Ok(kName, driver.version));
  }
  findings.push_back(JudgeGpus(driver));
  return findings;
}

Outcome CheckDriver(const World& world) {
  std::string why;
  const std::unique_ptr<placement::Nvml> nvml = placement::Nvml::Open(&why);
  const placement::GpuList list = placement::ListGpus(world.root, nvml.get(), why);
  Driver driver;
  driver.version = list.driver;
  driver.looked_at = list.looked_at;
  driver.gpu_on_bus = GpuOnBus(world);
  for (const placement::Gpu& gpu : list.gpus) {
    driver.gpus.push_back(gpu.name.empty() ? "GPU" : gpu.name);
  }
  if (world.environment.contains("CUDA_VISIBLE_DEVICES")) {
    driver.visible_devices = world.Variable("CUDA_VISIBLE_DEVICES");
  }
  const std::map<std::string, std::string> versions = ReadVersions(world);
  if (versions.contains("cuda")) driver.cuda = versions.at("cuda");
  Outcome outcome{JudgeDriver(driver), {{"driver", driver.version}}};
  const std::set<std::string> models(driver.gpus.begin(), driver.gpus.end());
  outcome.facts["gpus"] = absl::StrJoin(models, ", ");
  return outcome;
}

std::map<std::string, std::string> ReadVersions(const World& world) {
  std::map<std::string, std::string> versions;
  const absl::StatusOr<std::string> text =
      PosixFileSystem().ReadFile(JoinPath(world.binary_folder, "ddp-worker.versions"));
  if (!text.ok()) return versions;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (pair.second.empty()) continue;
    versions[absl::AsciiStrToLower(pair.first)] =
        net::Shown(absl::StripAsciiWhitespace(pair.second), 64);
  }
  return versions;
}

Finding JudgeWorker(const Worker& worker) {
  constexpr char kName[] = "built-in trainer";
  if (!worker.there) {
    return Note(kName, absl::StrCat("there is no ", worker.path),
                "programs of your own run; a train.cfg does not", "./scripts/build.sh");
  }
  std::vector<std::string> versions;
  for (const char* key : {"libtorch", "cuda", "nccl"}) {
    const auto found = worker.versions.find(key);
    if (found != worker.versions.end()) versions.push_back(absl::StrCat(key, " ", found->second));
  }
  const std::string seen =
      versions.empty() ? "no ddp-worker.versions beside it" : absl::StrJoin(versions, ", ");
  if (worker.timed_out) {
    return Note(kName, absl::StrCat(seen, "; it did not start within ", kStartMax.count(), " s"),
                "its libraries lie on a slow disk, or the machine is busy", "try it again");
  }
  if (worker.exit_code != 0) {
    return Problem(kName, absl::StrCat(seen, "; it does not start: ", FirstLine(worker.output)),
                   "a train.cfg cannot be run here",
                   absl::StrCat("ldd ", worker.path,
                                " names what is missing; scripts/package.sh makes a folder that "
                                "has everything with it"));
  }
  if (versions.empty()) {
    return Note(kName, seen, "nodes with another LibTorch are not noticed when they join",
                "build again, or copy the whole bin folder");
  }
  return Ok(kName, absl::StrCat(seen, "; it starts"));
}

Outcome CheckWorker(const World& world) {
  Worker worker;
  worker.path = JoinPath(world.binary_folder, "ddp-worker");
  worker.there = access(worker.path.c_str(), X_OK) == 0;
  worker.versions = ReadVersions(world);
  if (worker.there) {
    const agent::ToolRun run =
        agent::RunTool({worker.path, "--version"}, std::chrono::steady_clock::now() + kStartMax,
                       kOutputBytesMax, /*stop_fd=*/-1);
    worker.timed_out = run.end == agent::ToolRun::End::kTimedOut;
    worker.exit_code = run.end == agent::ToolRun::End::kMissing ? 127 : run.exit_code;
    worker.output = run.output;
  }
  return {{JudgeWorker(worker)}, worker.versions};
}

Finding JudgePython(const Python& python) {
  constexpr char kName[] = "Python";
  if (python.path.empty()) {
    return Note(kName, python.wished ? "PYTHON_EXEC names no program" : "no python3 on PATH",
                "programs in Python do not run; the built-in trainer does",
                "install it, or PYTHON_EXEC=PATH");
  }
  if (python.timed_out) {
    return Note(kName,
                absl::StrCat(python.path, " did not answer within ", kStartMax.count(), " s"),
                "it lies on a slow disk, or the machine is busy", "try it again");
  }
  if (python.exit_code != 0) {
    return Problem(kName, absl::StrCat(python.path, " fails: ", FirstLine(python.output)),
                   "programs in Python do not run", "PYTHON_EXEC=PATH of one that works");
  }
  const std::map<std::string, std::string> words = WordsOf(python.output);
  const auto found = words.find("python");
  const std::string seen = absl::StrCat(
      python.path, ", ", found == words.end() ? std::string("of unknown version") : found->second);
  if (!words.contains("torch")) {
    return Note(kName, absl::StrCat(seen, ", without torch"), "PyTorch programs do not run with it",
                "activate the environment that has torch, or PYTHON_EXEC=PATH");
  }
  std::string with = absl::StrCat(seen, ", torch ", words.at("torch"));
  if (words.contains("nccl")) absl::StrAppend(&with, ", NCCL ", words.at("nccl"));
  return Ok(kName, with);
}

Outcome CheckPython(const World& world) {
  Python python;
  const std::string wished = world.Variable("PYTHON_EXEC");
  python.wished = !wished.empty();
  python.path = FindOnPath(world, python.wished ? wished : "python3");
  if (!python.path.empty()) {
    const agent::ToolRun run = agent::RunTool({python.path, "-I", "-c", kAskPython},
                                              std::chrono::steady_clock::now() + kStartMax,
                                              kOutputBytesMax, /*stop_fd=*/-1);
    python.timed_out = run.end == agent::ToolRun::End::kTimedOut;
    python.exit_code = run.end == agent::ToolRun::End::kMissing ? 127 : run.exit_code;
    python.output = run.output;
  }
  Outcome outcome{{JudgePython(python)}, {}};
  for (const auto& [key, value] : WordsOf(python.output)) {
    if (python.exit_code == 0 && (key == "torch" || key == "python")) {
      outcome.facts[key == "torch" ? "python_torch" : key] = value;
    }
  }
  return outcome;
}

}  // namespace ddprun::doctor
