#include "worker/trainer/out_of_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/plan_memory.h"

namespace ddprun {
namespace {

// How LibTorch's allocators begin what they say.
constexpr char kCpuAllocator[] = "DefaultCPUAllocator: ";
constexpr char kGpuAllocator[] = "CUDA out of memory";

std::string Bytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return absl::StrFormat("%.2f GiB", value / (1 << 30));
  if (bytes >= int64_t{1} << 20) return absl::StrFormat("%.1f MiB", value / (1 << 20));
  return absl::StrFormat("%.1f KiB", value / (1 << 10));
}

// What was asked for. Before it stands a place in LibTorch's source or in a module's, in the lines
// after it the allocator speaks of its own settings.
std::string WhatWasAsked(const std::string& text) {
  size_t begin = 0;
  if (const size_t cpu = text.find(kCpuAllocator); cpu != std::string::npos) {
    begin = cpu + sizeof kCpuAllocator - 1;
  } else if (const size_t gpu = text.find(kGpuAllocator); gpu != std::string::npos) {
    begin = gpu;
  }
  return text.substr(begin, text.find('\n', begin) - begin);
}

// "weights 1.0 MiB, gradients 1.0 MiB, …"
std::string PartsText(const OutOfMemory& what, int64_t rest) {
  const StateBytes& state = what.state;
  std::string text = absl::StrCat("weights ", Bytes(state.weights), ", gradients ",
                                  Bytes(state.gradients), ", optimizer ", Bytes(state.optimizer));
  const auto add = [&](const char* name, int64_t bytes) {
    if (bytes > 0) absl::StrAppend(&text, ", ", name, " ", Bytes(bytes));
  };
  add("averaged weights", state.average);
  if (what.on_cpu) {
    add("copy for checkpoints", state.checkpoint_copy);
    add("batches prepared ahead", state.loader);
    return absl::StrCat(text, ", activations, LibTorch itself and the rest ", Bytes(rest));
  }
  return absl::StrCat(text, ", activations and the rest ", Bytes(rest));
}

// Without a dry run: by what a batch of half the size and 16 bits a number would save at most.
std::vector<std::string> EstimatedHelp(const StateBytes& state, int64_t rest,
                                       const TrainConfig& config) {
  std::vector<std::string> help;
  if (config.data_batch_size > 1) {
    help.push_back(absl::StrCat(HalfTheBatchText(config), " (the same update): up to ",
                                Bytes(rest / 2), " less"));
  }
  if (config.precision_recompute == "none" && state.blocks > 1) {
    help.push_back(
        absl::StrCat("[precision] recompute = \"blocks\": a part of the ", Bytes(rest),
                     " of activations, all but the blocks' inputs and one block's own, for about a "
                     "third more computing"));
  }
  if (config.precision_amp == "off") {
    help.push_back(absl::StrCat("[precision] amp = \"bf16\": up to ", Bytes(rest / 2),
                                " of activations less; weights, gradients and optimizer stay as "
                                "they are"));
  }
  return help;
}

}  // namespace

int64_t TensorBytes(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& item : tensors) bytes += static_cast<int64_t>(item.tensor.nbytes());
  return bytes;
}

bool IsOutOfMemory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  // The allocator of the CPU has no type of error of its own, and the interpreter of TorchScript
  // gives any error of an operation on as a text.
  return absl::StrContains(error.what(), absl::StrCat(kCpuAllocator, "can't allocate memory")) ||
         absl::StrContains(error.what(), kGpuAllocator);
}

int64_t PeakMemoryInUse(const at::Device& device) {
  if (device.is_cpu()) {
    rusage usage = {};
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss * int64_t{1024} : 0;
  }
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return stats.allocated_bytes[0].peak;  // 0: all pools together
}

std::string OutOfMemoryText(const OutOfMemory& what, const TrainConfig& config) {
  const StateBytes& state = what.state;
  const int64_t rest = std::max<int64_t>(0, what.in_use - state.Kept(what.on_cpu));
  std::string text = absl::StrCat("out of memory: ", WhatWasAsked(what.reason), "\n  at most ",
                                  Bytes(what.in_use), " were in use by this rank");
  if (state.weights > 0) absl::StrAppend(&text, ": ", PartsText(what, rest));
  std::vector<std::string> help;
  if (what.advice != nullptr) {
    absl::StrAppend(&text, "\n  by a dry run on the CPU it needs ",
                    Bytes(what.advice->plan.OnDevice()), ", of which ",
                    Bytes(what.advice->plan.activations), " for activations");
    for (const MemoryOption& option : what.advice->options) {
      help.push_back(
          absl::StrCat(option.change, ": ", Bytes(option.activations), " for activations"));
    }
    for (const std::string& change : what.advice->unmeasured) {
      help.push_back(absl::StrCat(change, " may help, too; there was no time to measure it"));
    }
  } else {
    help = EstimatedHelp(state, rest, config);
  }
  const int64_t kept = what.advice != nullptr
                           ? what.advice->plan.OnDevice() - what.advice->plan.activations
                           : state.Kept(what.on_cpu);
  const int64_t all = what.advice != nullptr ? what.advice->plan.OnDevice() : what.in_use;
  if (help.empty() || kept > all / 2) {
    help.emplace_back(
        "a smaller model, or an optimizer with less state (sgd): most of it is state, which no "
        "batch size changes");
  }
  absl::StrAppend(&text, "\n  what would help:");
  for (const std::string& line : help) absl::StrAppend(&text, "\n  - ", line);
  return text;
}

}  // namespace ddprun
