#include "worker/trainer/out_of_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

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

std::string OutOfMemoryText(const std::string& reason, const StateBytes& state, int64_t in_use,
                            const TrainConfig& config) {
  const int64_t rest = std::max<int64_t>(0, in_use - state.total());
  std::string text =
      absl::StrCat("out of memory: ", WhatWasAsked(reason), "\n  at most ", Bytes(in_use),
                   " were in use by this rank: weights ", Bytes(state.weights), ", gradients ",
                   Bytes(state.gradients), ", optimizer ", Bytes(state.optimizer),
                   ", activations and the rest ", Bytes(rest), "\n  what would help:");
  const auto help = [&](const std::string& what) { absl::StrAppend(&text, "\n  - ", what); };
  if (config.data_batch_size > 1) {
    const int64_t half = config.data_batch_size / 2;
    help(absl::StrCat("data.batch_size = ", half,
                      " with train.accumulation_steps = ", config.train_accumulation_steps * 2,
                      " (the same update): about ", Bytes(rest / 2), " less"));
  }
  if (config.precision_recompute == "none") {
    help(
        absl::StrCat("precision.recompute = \"blocks\": a part of the ", Bytes(rest),
                     " of activations, all but the blocks' inputs and one block's own, for about a "
                     "third more computing"));
  }
  if (config.precision_amp == "off") {
    help(absl::StrCat("precision.amp = \"bf16\": up to ", Bytes(rest / 2),
                      " of activations less; weights, gradients and optimizer stay as they are"));
  }
  if (state.total() > in_use / 2) {
    help(
        "a smaller model, or an optimizer with less state (sgd): most of it is state, which no "
        "batch size changes");
  }
  return text;
}

}  // namespace ddprun
