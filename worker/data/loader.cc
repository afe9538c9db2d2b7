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
  const SampleSpec spec = dataset_->spec();
  std::vector<int64_t> inputs = spec.input_shape;
  std::vector<int64_t> targets = spec.target_shape;
  inputs.insert(inputs.begin(), batch_size_);
  targets.insert(targets.begin(), batch_size_);
  const auto type = spec.input_type == InputType::kFloat32 ? at::kFloat : at::kLong;
  sample_bytes_ = ElementCount(spec.input_shape) * static_cast<int64_t>(c10::elementSize(type));
  sample_targets_ = ElementCount(spec.target_shape);
  for (Slot& slot : slots_) {
    slot.inputs = at::empty(inputs, type);
    slot.targets = at::empty(targets, at::kLong);
    slot.input_data = static_cast<std::byte*>(slot.inputs.data_ptr());
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

void Loader::Start(int64_t epoch, std::vector<int64_t> indices) {
  std::unique_lock<std::mutex> lock(mutex_);
  batches_ = 0;  // threads take nothing more of the old list
  done_.wait(lock, [this] { return busy_ == 0; });
  epoch_ = epoch;
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
  slot.status = absl::OkStatus();
  for (int64_t i = 0; i < Count(batch) && slot.status.ok(); ++i) {
    slot.status =
        dataset_->Fill(epoch_, indices_[static_cast<size_t>(batch * batch_size_ + i)],
                       slot.input_data + i * sample_bytes_, slot.target_data + i * sample_targets_);
  }
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

absl::StatusOr<Batch> Loader::Next() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (next_take_ >= batches_) return Batch{};
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
  if (!slot.status.ok()) return slot.status;
  const int64_t count = Count(batch);
  if (count == batch_size_) return Batch{slot.inputs, slot.targets};
  return Batch{slot.inputs.narrow(0, 0, count), slot.targets.narrow(0, 0, count)};
}

}  // namespace ddprun
