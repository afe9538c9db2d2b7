#include "worker/checkpoint/snapshot.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "worker/checkpoint/tensor_format.h"

namespace ddprun {
namespace {

// What a thread copies at once, small enough to share the work evenly.
constexpr size_t kChunkBytes = size_t{8} << 20;

// Copies around the caches: nobody reads the copy soon, so its lines need not be fetched before
// they are overwritten, and what training has in the caches stays there.
void StreamCopy(char* to, const char* from, size_t bytes) {
#ifdef __SSE2__
  constexpr size_t kVector = sizeof(__m128i);
  constexpr size_t kLine = 4 * kVector;
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % kVector);
  memcpy(to, from, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i line[] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1),
                            _mm_loadu_si128(source + 2), _mm_loadu_si128(source + 3)};
    for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, line[i]);
  }
  _mm_sfence();  // the thread that writes the file sees it all
  memcpy(to + at, from + at, bytes - at);
#else
  memcpy(to, from, bytes);
#endif
}

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

absl::StatusOr<Snapshot> Snapshot::Create(const std::vector<NamedTensor>& tensors) {
  absl::StatusOr<std::vector<TensorInfo>> infos = TensorInfos(tensors);
  if (!infos.ok()) return infos.status();
  // "format" is what other readers of the format look for.
  absl::StatusOr<std::string> header = BuildSafetensorsHeader(&*infos, {{"format", "pt"}});
  if (!header.ok()) return header.status();
  Snapshot snapshot;
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

void Snapshot::Capture() {
  const at::NoGradGuard no_grad;
  std::set<at::DeviceIndex> devices;
  for (size_t i : others_) {
    views_[i].copy_(sources_[i], /*non_blocking=*/true);
    if (sources_[i].is_cuda()) devices.insert(sources_[i].device().index());
  }
  at::parallel_for(0, static_cast<int64_t>(chunks_.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Chunk& chunk = chunks_[static_cast<size_t>(i)];
      StreamCopy(static_cast<char*>(views_[chunk.tensor].data_ptr()) + chunk.offset,
                 static_cast<const char*>(sources_[chunk.tensor].data_ptr()) + chunk.offset,
                 chunk.bytes);
    }
  });
  for (at::DeviceIndex index : devices) WaitForDevice(at::Device(at::kCUDA, index));
}

}  // namespace ddprun
