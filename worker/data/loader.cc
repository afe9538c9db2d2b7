#include "worker/data/loader.h"

#include <algorithm>
#include <chrono>

namespace ddprun {
namespace {

// Batches that lie ready or are being read by the model, per thread. Two keep a thread busy while
// one is used.
constexpr int64_t kSlotsPerThread = 2;

}  // namespace

Loader::Loader(std::shared_ptr<const Dataset> dataset, int64_t batch_size, int threads)
    : dataset_(std::move(dataset)), batch_size_(batch_size) {
  slots_.resize(static_cast<size_t>(std::max<int64_t>(1, kSlotsPerThread * threads)));
  std::vector<int64_t> shape = dataset_->sample_shape();
  shape.insert(shape.begin(), batch_size_);
  for (Slot& slot : slots_) {
    slot.inputs = at::empty(shape, at::kFloat);
    slot.targets = at::empty({batch_size_}, at::kLong);
    slot.input_data = slot.inputs.data_ptr<float>();
    slot.target_data = slot.targets.data_ptr<int64_t>();
  }
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

Loader::~Loader() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Loader::Start(std::vector<int64_t> indices) {
  std::unique_lock<std::mutex> lock(mutex_);
  batches_ = 0;  // threads take nothing more of the old list
  done_.wait(lock, [this] { return busy_ == 0; });
  indices_ = std::move(indices);
  batches_ = (static_cast<int64_t>(indices_.size()) + batch_size_ - 1) / batch_size_;
  next_fill_ = 0;
  next_take_ = 0;
  for (Slot& slot : slots_) slot.ready = -1;
  lock.unlock();
  work_.notify_all();
}

int64_t Loader::Count(int64_t batch) const {
  return std::min(batch_size_, static_cast<int64_t>(indices_.size()) - batch * batch_size_);
}

void Loader::FillSlot(int64_t batch) {
  Slot& slot = slots_[static_cast<size_t>(batch) % slots_.size()];
  dataset_->Fill(indices_.data() + batch * batch_size_, Count(batch), slot.input_data,
                 slot.target_data);
}

void Loader::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    // The batch that Next gave out last still holds its slot, hence the slots minus one.
    work_.wait(lock, [this] {
      return stop_ || (next_fill_ < batches_ &&
                       next_fill_ < next_take_ + static_cast<int64_t>(slots_.size()) - 1);
    });
    if (stop_) return;
    const int64_t batch = next_fill_++;
    ++busy_;
    lock.unlock();
    FillSlot(batch);
    lock.lock();
    --busy_;
    slots_[static_cast<size_t>(batch) % slots_.size()].ready = batch;
    done_.notify_all();
  }
}

Batch Loader::Next() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (next_take_ >= batches_) return {};
  const int64_t batch = next_take_++;
  Slot& slot = slots_[static_cast<size_t>(batch) % slots_.size()];
  const auto begin = std::chrono::steady_clock::now();
  if (threads_.empty()) {
    FillSlot(batch);
  } else {
    // Taking a batch frees the slot of the one before.
    work_.notify_one();
    done_.wait(lock, [&] { return slot.ready == batch; });
  }
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const int64_t count = Count(batch);
  if (count == batch_size_) return {slot.inputs, slot.targets};
  return {slot.inputs.narrow(0, 0, count), slot.targets.narrow(0, 0, count)};
}

}  // namespace ddprun
