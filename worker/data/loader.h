// Loader: turns a list of sample numbers into batches, with threads that work ahead through a
// bounded ring. Batch k is always samples [k·batch_size, (k+1)·batch_size) of the list, whatever
// thread makes it, so results do not depend on the number of threads. Next belongs to one thread; a
// batch is valid until the following Next. A sample that cannot be made is the error of the Next
// that would have given its batch.
#pragma once

#include <torch/torch.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/data/dataset.h"

namespace ddprun {

struct Batch {
  at::Tensor inputs;   // {n, sample…} float32 or int64
  at::Tensor targets;  // {n, target…} int64
};

class Loader {
 public:
  // `threads` = 0: batches are made in Next itself.
  Loader(std::shared_ptr<const Dataset> dataset, int64_t batch_size, int threads);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Begins a new list; what was prepared of the old one is dropped. Ends after ceil(list /
  // batch_size) batches.
  void Start(int64_t epoch, std::vector<int64_t> indices);
  // The next batch, shorter at the end of the list; undefined tensors after the last. Waiting time
  // is added to wait_seconds.
  absl::StatusOr<Batch> Next();
  double wait_seconds() const { return wait_seconds_; }

 private:
  struct Slot {
    at::Tensor inputs;
    at::Tensor targets;
    std::byte* input_data = nullptr;
    int64_t* target_data = nullptr;
    absl::Status status;
    int64_t ready = -1;  // number of the batch that lies here
  };
  void Work();
  void FillSlot(int64_t batch);
  int64_t Count(int64_t batch) const;

  const std::shared_ptr<const Dataset> dataset_;
  const int64_t batch_size_;
  int64_t sample_bytes_ = 0;
  int64_t sample_targets_ = 0;
  std::vector<Slot> slots_;
  int64_t epoch_ = 0;
  std::vector<int64_t> indices_;
  int64_t batches_ = 0;
  double wait_seconds_ = 0;

  std::mutex mutex_;
  std::condition_variable work_;  // something to do for the threads
  std::condition_variable done_;  // a batch is ready, or a thread became idle
  int64_t next_fill_ = 0;
  int64_t next_take_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ddprun
