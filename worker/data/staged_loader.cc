#include "worker/data/staged_loader.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace ddprun {
namespace {

// By LibTorch's names that every device shares; no header of CUDA is needed.
class StreamCopyQueue : public CopyQueue {
 public:
  explicit StreamCopyQueue(const at::Device& device)
      : device_(device),
        streams_(device.type()),
        side_(streams_.getStreamFromGlobalPool(device)),
        copied_{c10::Event(device.type()), c10::Event(device.type())},
        used_{c10::Event(device.type()), c10::Event(device.type())} {}

  bool wants_pinned_memory() const override { return true; }
  Batch Copy(int buffer, const Batch& host) override {
    const auto b = static_cast<size_t>(buffer);
    const int64_t count = host.targets.size(0);
    if (!buffers_[b].inputs.defined() || buffers_[b].inputs.size(0) < count) {
      buffers_[b] = {at::empty(host.inputs.sizes(), host.inputs.options().device(device_)),
                     at::empty(host.targets.sizes(), host.targets.options().device(device_))};
      // Their memory may have been freed by computation that is still going on.
      used_[b].record(streams_.getStream(device_));
    }
    used_[b].block(side_);
    const Batch batch = {buffers_[b].inputs.narrow(0, 0, count),
                         buffers_[b].targets.narrow(0, 0, count)};
    {
      const c10::StreamGuard guard(side_);
      batch.inputs.copy_(host.inputs, /*non_blocking=*/true);
      batch.targets.copy_(host.targets, /*non_blocking=*/true);
    }
    copied_[b].record(side_);
    return batch;
  }
  void WaitOnDevice(int buffer) override {
    copied_[static_cast<size_t>(buffer)].block(streams_.getStream(device_));
  }
  void WaitOnHost(int buffer) override { copied_[static_cast<size_t>(buffer)].synchronize(); }
  void MarkUsed(int buffer) override {
    used_[static_cast<size_t>(buffer)].record(streams_.getStream(device_));
  }

 private:
  const at::Device device_;
  const c10::impl::VirtualGuardImpl streams_;
  const c10::Stream side_;
  std::array<c10::Event, kBuffers> copied_;
  std::array<c10::Event, kBuffers> used_;
  std::array<Batch, kBuffers> buffers_;
};

}  // namespace

std::unique_ptr<CopyQueue> MakeCopyQueue(const at::Device& device) {
  if (device.is_cpu()) return nullptr;
  return std::make_unique<StreamCopyQueue>(device);
}

StagedLoader::StagedLoader(std::shared_ptr<const Dataset> dataset, LoaderOptions options,
                           std::unique_ptr<CopyQueue> queue)
    : queue_(std::move(queue)) {
  // A batch on the host is read until its copy has ended, which is asked two batches later.
  options.kept = queue_ == nullptr ? 1 : CopyQueue::kBuffers;
  options.pinned = queue_ != nullptr && queue_->wants_pinned_memory();
  loader_ = std::make_unique<Loader>(std::move(dataset), options);
}

StagedLoader::~StagedLoader() {
  WaitForCopies();  // the host's memory may not go while it is read
}

void StagedLoader::Start(int64_t epoch, std::vector<int64_t> indices) {
  WaitForCopies();  // the ring is written anew from its beginning, whatever it held
  // What was copied ahead is dropped; nobody has read it.
  if (ahead_ && next_.ok() && next_->inputs.defined()) queue_->MarkUsed(BufferOf(staged_ - 1));
  ahead_ = false;
  loader_->Start(epoch, std::move(indices));
}

void StagedLoader::WaitForCopies() {
  for (int64_t batch = staged_ - 1; batch >= 0 && batch >= staged_ - CopyQueue::kBuffers; --batch) {
    queue_->WaitOnHost(BufferOf(batch));
  }
}

// Takes the next batch of the loader and asks for its copy.
void StagedLoader::Stage() {
  const int buffer = BufferOf(staged_);
  if (staged_ >= CopyQueue::kBuffers) queue_->WaitOnHost(buffer);
  next_ = loader_->Next();
  ahead_ = true;
  if (!next_.ok() || !next_->inputs.defined()) return;
  next_ = queue_->Copy(buffer, *next_);
  ++staged_;
}

absl::StatusOr<Batch> StagedLoader::Next() {
  if (queue_ == nullptr) return loader_->Next();
  if (given_ > 0) queue_->MarkUsed(BufferOf(given_ - 1));
  if (!ahead_) Stage();
  ahead_ = false;
  absl::StatusOr<Batch> batch = std::move(next_);
  if (!batch.ok() || !batch->inputs.defined()) return batch;
  queue_->WaitOnDevice(BufferOf(staged_ - 1));
  given_ = staged_;
  // Only what is ready: the host has more to do than wait.
  if (loader_->Ready()) Stage();
  return batch;
}

}  // namespace ddprun
