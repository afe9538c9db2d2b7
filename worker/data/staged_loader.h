// A Loader whose batches arrive on the device that trains. On a CPU it is the Loader, without a
// copy. On a GPU the next batch is copied from pinned memory on a queue of its own while the model
// computes; the computation waits for its batch by an event, and a buffer is used again only when
// an event says that it is free: no memory is handed to the allocator while it is in use, and none
// grows (TR32). One thread. A batch is valid until the following Next.
#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "worker/data/loader.h"

namespace ddprun {

// Two buffers on a device that computes and copies beside the host. Everything but WaitOnHost is
// asynchronous.
class CopyQueue {
 public:
  static constexpr int kBuffers = 2;
  virtual ~CopyQueue() = default;
  // Whether copies are asynchronous only from pinned memory.
  virtual bool wants_pinned_memory() const = 0;
  // Copies `host` to buffer `buffer`, after what MarkUsed has said of it. Returns the batch there.
  virtual Batch Copy(int buffer, const Batch& host) = 0;
  // What is computed from now on waits for the newest copy to the buffer.
  virtual void WaitOnDevice(int buffer) = 0;
  // Waits for the newest copy: its host memory is free then.
  virtual void WaitOnHost(int buffer) = 0;
  // All computation that reads the buffer has been asked for.
  virtual void MarkUsed(int buffer) = 0;
};

// null for a CPU.
std::unique_ptr<CopyQueue> MakeCopyQueue(const at::Device& device);

class StagedLoader {
 public:
  // `pinned` and `kept` of the options are chosen here.
  StagedLoader(std::shared_ptr<const Dataset> dataset, LoaderOptions options,
               std::unique_ptr<CopyQueue> queue);
  ~StagedLoader();
  StagedLoader(const StagedLoader&) = delete;
  StagedLoader& operator=(const StagedLoader&) = delete;

  // As of Loader.
  void Start(int64_t epoch, std::vector<int64_t> indices);
  void Follow(int64_t epoch, std::vector<int64_t> indices) {
    loader_->Follow(epoch, std::move(indices));
  }
  absl::StatusOr<Batch> Next();
  double wait_seconds() const { return loader_->wait_seconds(); }
  double first_wait_seconds() const { return loader_->first_wait_seconds(); }

 private:
  static int BufferOf(int64_t batch) { return static_cast<int>(batch % CopyQueue::kBuffers); }
  void Stage();
  void WaitForCopies();

  std::unique_ptr<CopyQueue> queue_;  // null: the loader's batches are used as they are
  std::unique_ptr<Loader> loader_;
  // Batches are numbered through all lists.
  int64_t staged_ = 0;  // batches whose copy was asked for
  int64_t given_ = 0;   // batches that Next has given out
  bool ahead_ = false;  // `next_` holds what the coming Next returns
  absl::StatusOr<Batch> next_;
};

}  // namespace ddprun
