// Loader: turns a list of sample numbers into batches, with threads that work ahead through a
// bounded ring. Batch k is always samples [k·batch_size, (k+1)·batch_size) of the list, whatever
// thread makes it, so results do not depend on the number of threads. Large batches are cut into
// pieces that several threads fill, so that the first one is there soon.
//
// Next belongs to one thread; a batch is valid until the Next that comes `kept` calls later. A
// sample that cannot be made is the error of the Next that would have given its batch, also when
// Fill threw. One that takes longer than slow_seconds is named once on stderr, while it is waited
// for or when it is done.
#pragma once

#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "worker/data/dataset.h"

namespace ddprun {

struct Batch {
  at::Tensor inputs;   // {n, sample…} float32 or int64
  at::Tensor targets;  // {n, target…} int64
};

struct LoaderOptions {
  int64_t batch_size = 1;
  int threads = 0;      // 0: batches are made in Next itself
  bool pinned = false;  // memory that a GPU can copy from by itself
  int kept = 1;         // newest batches that stay valid, ≥ 1
  double slow_seconds = 5;
};

class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  Loader(std::shared_ptr<const Dataset> dataset, int64_t batch_size, int threads)
      : Loader(std::move(dataset), {.batch_size = batch_size, .threads = threads}) {}
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Begins a new list; what was prepared of the old one is dropped. Ends after ceil(list /
  // batch_size) batches.
  void Start(int64_t epoch, std::vector<int64_t> indices);
  // Says what the coming Start will begin, once for each Start: threads that are through with the
  // current list go on with that one, and its first batch is there when it starts. A Start of
  // something else, or before the end of the current list, drops what was prepared.
  void Follow(int64_t epoch, std::vector<int64_t> indices);
  // The next batch, shorter at the end of the list; undefined tensors after the last. Waiting time
  // is added to wait_seconds.
  absl::StatusOr<Batch> Next();
  // Whether Next would not wait: the next batch is ready, or there is none. False without threads.
  bool Ready();

  double wait_seconds() const { return wait_seconds_; }
  // Of those, the ones spent on the first batch of each list.
  double first_wait_seconds() const { return first_wait_seconds_; }
  // Memory of the ring: at most kRingBytesMax, or kept + 1 batches where these are more.
  static int64_t RingBytes(const SampleSpec& spec, const LoaderOptions& options);
  static constexpr int64_t kRingBytesMax = int64_t{256} << 20;

 private:
  using Clock = std::chrono::steady_clock;
  struct List {
    int64_t epoch = 0;
    std::vector<int64_t> indices;
    int64_t first = 0;  // batches are numbered through the current list and the following one
    int64_t end = 0;
  };
  struct Slot {
    std::shared_ptr<const List> list;  // of the batch that it holds
    at::Tensor inputs;
    at::Tensor targets;
    std::byte* input_data = nullptr;
    int64_t* target_data = nullptr;
    int64_t pieces_left = 0;
    int64_t bad_place = -1;  // of the first sample of the batch that could not be made
    absl::Status status;
  };
  // What a thread is doing; only for messages.
  struct Worker {
    std::atomic<int64_t> index = -1;  // sample; −1: nothing
    std::atomic<Clock::rep> begin = 0;
  };
  void Work(Worker* worker);
  // Gives slots to the batches that may be made now, and wakes threads for them. The `kept` newest
  // batches that were handed out keep theirs.
  void OpenSlots();
  Slot& SlotOf(int64_t batch) { return slots_[static_cast<size_t>(batch) % slots_.size()]; }
  std::shared_ptr<const List> MakeList(int64_t epoch, std::vector<int64_t> indices,
                                       int64_t first) const;
  int64_t Count(const List& list, int64_t batch) const;
  int64_t Pieces(const List& list, int64_t batch) const;
  void FillPiece(int64_t batch, int64_t piece, Worker* worker);
  absl::Status FillSample(const Slot& slot, int64_t place, int64_t index);
  void WaitFor(const Slot& slot, std::unique_lock<std::mutex>* lock);
  void NameSlow(int64_t index, double seconds, bool done);

  const std::shared_ptr<const Dataset> dataset_;
  const LoaderOptions options_;
  int64_t sample_bytes_ = 0;
  int64_t sample_targets_ = 0;
  int64_t piece_samples_ = 1;
  std::vector<Slot> slots_;
  std::shared_ptr<const List> list_;       // what Next gives
  std::shared_ptr<const List> following_;  // null: not known yet
  double wait_seconds_ = 0;
  double first_wait_seconds_ = 0;

  std::mutex mutex_;
  std::condition_variable work_;  // something to do for the threads
  std::condition_variable done_;  // a batch is ready, or a thread became idle
  int64_t fill_batch_ = 0;        // the next piece that nobody has taken
  int64_t fill_piece_ = 0;
  int64_t opened_ = 0;  // batches that have a slot: up to this number pieces may be taken
  int64_t next_take_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::set<int64_t> named_slow_;
  std::vector<Worker> workers_;
  std::vector<std::thread> threads_;
};

}  // namespace ddprun
