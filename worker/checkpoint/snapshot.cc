#include "worker/checkpoint/snapshot.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "worker/checkpoint/stream_copy.h"
#include "worker/checkpoint/tensor_format.h"

namespace ddprun {
namespace {

// What a thread copies at once, small enough to share the work evenly.
constexpr size_t kChunkBytes = size_t{8} << 20;

// Copies from a GPU are several times as fast into memory that the driver has pinned.
at::Tensor MakeBuffer(const std::vector<NamedTensor>& tensors, uint64_t bytes) {
  const bool pinned = std::any_of(tensors.begin(), tensors.end(),
                                  [](const NamedTensor& item) { return item.tensor.is_cuda(); });
  return at::empty({static_cast<int64_t>(bytes)},
                   at::TensorOptions(at::kByte).pinned_memory(pinned));
}

void WaitForDevice(const at::Device& device) {
  c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

}  // namespace

absl::StatusOr<Snapshot> Snapshot::Create(const std::vector<NamedTensor>& tensors, int threads) {
  absl::StatusOr<std::vector<TensorInfo>> infos = TensorInfos(tensors);
  if (!infos.ok()) return infos.status();
  // "format" is what other readers of the format look for.
  absl::StatusOr<std::string> header = BuildSafetensorsHeader(&*infos, {{"format", "pt"}});
  if (!header.ok()) return header.status();
  Snapshot snapshot;
  snapshot.threads_ = threads;
  snapshot.header_ = *std::move(header);
  snapshot.buffer_ = MakeBuffer(tensors, infos->empty() ? 0 : infos->back().end);
  std::map<std::string, at::Tensor> by_name;
  for (const NamedTensor& item : tensors) by_name[item.name] = item.tensor;
  for (const TensorInfo& info : *infos) {
    const at::Tensor source = by_name[info.name].detach();
    // The layout puts larger elements first, so every view is aligned for its type.
    snapshot.AddSource(source, at::from_blob(snapshot.buffer_.data_ptr<uint8_t>() + info.begin,
                                             info.shape, at::TensorOptions(source.scalar_type())));
  }
  return snapshot;
}

void Snapshot::AddSource(const at::Tensor& source, const at::Tensor& view) {
  const size_t index = sources_.size();
  sources_.push_back(source);
  views_.push_back(view);
  if (!source.is_cpu() || !source.is_contiguous()) {
    others_.push_back(index);
    return;
  }
  for (size_t offset = 0; offset < source.nbytes(); offset += kChunkBytes) {
    chunks_.push_back({index, offset, std::min(kChunkBytes, source.nbytes() - offset)});
  }
}

void Snapshot::Populate() {
  if (buffer_.is_pinned() || buffer_.nbytes() == 0) return;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* const data = static_cast<char*>(buffer_.data_ptr());
  const size_t before = (page - reinterpret_cast<uintptr_t>(data) % page) % page;
  if (buffer_.nbytes() < before + page) return;
  char* const first = data + before;
  const size_t bytes = (buffer_.nbytes() - before) / page * page;
  // Large pages, where the system gives them on request, make the copy itself faster too.
  madvise(first, bytes, MADV_HUGEPAGE);
  volatile char* const touched = first;
  for (size_t at = 0; at < bytes; at += page) touched[at] = 0;
}

void Snapshot::CopyChunks() {
  std::atomic<size_t> next = 0;
  const auto copy = [&] {
    for (size_t i = next++; i < chunks_.size(); i = next++) {
      const Chunk& chunk = chunks_[i];
      StreamCopy(static_cast<char*>(views_[chunk.tensor].data_ptr()) + chunk.offset,
                 static_cast<const char*>(sources_[chunk.tensor].data_ptr()) + chunk.offset,
                 chunk.bytes);
    }
  };
  // A thread takes some 50 µs to begin, in which this one copies half a megabyte.
  const size_t threads = std::min(static_cast<size_t>(threads_), buffer_.nbytes() / kChunkBytes);
  std::vector<std::jthread> others;
  for (size_t i = 1; i < threads; ++i) others.emplace_back(copy);
  copy();
}

void Snapshot::Capture() {
  const at::NoGradGuard no_grad;
  std::set<at::DeviceIndex> devices;
  for (size_t i : others_) {
    views_[i].copy_(sources_[i], /*non_blocking=*/true);
    if (sources_[i].is_cuda()) devices.insert(sources_[i].device().index());
  }
  CopyChunks();
  for (at::DeviceIndex index : devices) WaitForDevice(at::Device(at::kCUDA, index));
}

}  // namespace ddprun
