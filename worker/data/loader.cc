#include "worker/data/loader.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

// Batches that lie ready or are being made, per thread. Two keep a thread busy while one is used.
constexpr int64_t kSlotsPerThread = 2;
// Smaller pieces cost more in hand-overs than they win.
constexpr int64_t kPieceBytes = 256 << 10;
// Slow samples that are named; a slow disk would fill the log.
constexpr size_t kSlowNamedMax = 20;
// A wait looks at the time this often at most.
constexpr double kPatienceMin = 0.01;

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

at::ScalarType ElementType(const SampleSpec& spec) {
  return spec.input_type == InputType::kFloat32 ? at::kFloat : at::kLong;
}

int64_t InputBytes(const SampleSpec& spec) {
  return ElementCount(spec.input_shape) * static_cast<int64_t>(c10::elementSize(ElementType(spec)));
}

int64_t SampleBytes(const SampleSpec& spec) {
  return InputBytes(spec) + ElementCount(spec.target_shape) * int64_t{sizeof(int64_t)};
}

int64_t SlotCount(const LoaderOptions& options, int64_t batch_bytes) {
  const int64_t fitting = Loader::kRingBytesMax / std::max<int64_t>(1, batch_bytes);
  const int64_t least = options.threads == 0 ? options.kept : options.kept + 1;
  const int64_t wished = options.threads == 0 ? options.kept : kSlotsPerThread * options.threads;
  return std::max(least, std::min(fitting, wished));
}

}  // namespace

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : dataset_(std::move(dataset)),
      options_(options),
      list_(std::make_shared<List>()),
      workers_(static_cast<size_t>(std::max(1, options.threads))) {
  const SampleSpec spec = dataset_->spec();
  std::vector<int64_t> inputs = spec.input_shape;
  std::vector<int64_t> targets = spec.target_shape;
  inputs.insert(inputs.begin(), options_.batch_size);
  targets.insert(targets.begin(), options_.batch_size);
  sample_bytes_ = InputBytes(spec);
  sample_targets_ = ElementCount(spec.target_shape);
  piece_samples_ = std::max<int64_t>(1, kPieceBytes / SampleBytes(spec));
  slots_.resize(static_cast<size_t>(SlotCount(options_, options_.batch_size * SampleBytes(spec))));
  for (Slot& slot : slots_) {
    const auto memory = at::TensorOptions().pinned_memory(options_.pinned);
    slot.inputs = at::empty(inputs, memory.dtype(ElementType(spec)));
    slot.targets = at::empty(targets, memory.dtype(at::kLong));
    slot.input_data = static_cast<std::byte*>(slot.inputs.data_ptr());
    slot.target_data = slot.targets.data_ptr<int64_t>();
  }
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this, i] { Work(&workers_[static_cast<size_t>(i)]); });
  }
}

Loader::~Loader() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

int64_t Loader::RingBytes(const SampleSpec& spec, const LoaderOptions& options) {
  const int64_t batch_bytes = options.batch_size * SampleBytes(spec);
  return SlotCount(options, batch_bytes) * batch_bytes;
}

std::shared_ptr<const Loader::List> Loader::MakeList(int64_t epoch, std::vector<int64_t> indices,
                                                     int64_t first) const {
  const auto samples = static_cast<int64_t>(indices.size());
  const int64_t batches = (samples + options_.batch_size - 1) / options_.batch_size;
  return std::make_shared<List>(List{epoch, std::move(indices), first, first + batches});
}

void Loader::Start(int64_t epoch, std::vector<int64_t> indices) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (following_ != nullptr && next_take_ == list_->end && following_->epoch == epoch &&
      following_->indices == indices) {
    list_ = std::move(following_);
    following_ = nullptr;
    return;
  }
  opened_ = fill_batch_;  // threads take nothing more of the old lists
  fill_piece_ = 0;
  done_.wait(lock, [this] { return busy_ == 0; });
  list_ = MakeList(epoch, std::move(indices), 0);
  following_ = nullptr;
  fill_batch_ = fill_piece_ = opened_ = next_take_ = 0;
  OpenSlots();
}

void Loader::Follow(int64_t epoch, std::vector<int64_t> indices) {
  const std::lock_guard<std::mutex> lock(mutex_);
  following_ = MakeList(epoch, std::move(indices), list_->end);
  OpenSlots();
}

int64_t Loader::Count(const List& list, int64_t batch) const {
  const auto samples = static_cast<int64_t>(list.indices.size());
  return std::min(options_.batch_size, samples - (batch - list.first) * options_.batch_size);
}

int64_t Loader::Pieces(const List& list, int64_t batch) const {
  return (Count(list, batch) + piece_samples_ - 1) / piece_samples_;
}

void Loader::OpenSlots() {
  int64_t pieces = 0;
  const int64_t held = std::min<int64_t>(next_take_, options_.kept);
  const int64_t fitting = next_take_ - held + static_cast<int64_t>(slots_.size());
  const int64_t known = following_ == nullptr ? list_->end : following_->end;
  for (; opened_ < std::min(known, fitting); ++opened_) {
    Slot& slot = SlotOf(opened_);
    slot.list = opened_ < list_->end ? list_ : following_;
    slot.pieces_left = Pieces(*slot.list, opened_);
    slot.bad_place = -1;
    slot.status = absl::OkStatus();
    pieces += slot.pieces_left;
  }
  if (pieces == 1) work_.notify_one();
  if (pieces > 1) work_.notify_all();
}

absl::Status Loader::FillSample(const Slot& slot, int64_t place, int64_t index) {
  try {
    return dataset_->Fill(slot.list->epoch, index, slot.input_data + place * sample_bytes_,
                          slot.target_data + place * sample_targets_);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: there was none to prepare ", dataset_->NameOf(index),
                     "; each of data.workers = ", options_.threads,
                     " threads prepares one, and what is ready waits: fewer of them, or a smaller "
                     "data.batch_size, need less"));
  } catch (const std::exception& error) {  // of a library
    return absl::InternalError(absl::StrCat(dataset_->NameOf(index), ": ", error.what()));
  }
}

// Without the lock, which only bad and slow samples need.
void Loader::FillPiece(int64_t batch, int64_t piece, Worker* worker) {
  Slot& slot = SlotOf(batch);
  const List& list = *slot.list;
  const int64_t first = piece * piece_samples_;
  const int64_t end = std::min(Count(list, batch), first + piece_samples_);
  Clock::time_point begin = Clock::now();
  for (int64_t place = first; place < end; ++place) {
    const int64_t index =
        list.indices[static_cast<size_t>((batch - list.first) * options_.batch_size + place)];
    worker->begin.store(begin.time_since_epoch().count(), std::memory_order_relaxed);
    worker->index.store(index, std::memory_order_release);
    absl::Status status = FillSample(slot, place, index);
    const Clock::time_point now = Clock::now();
    const double seconds = Seconds(now - begin);
    begin = now;
    if (status.ok() && seconds <= options_.slow_seconds) continue;
    std::lock_guard<std::mutex> lock(mutex_);
    if (seconds > options_.slow_seconds) NameSlow(index, seconds, /*done=*/true);
    if (status.ok()) continue;
    // Of several bad samples the first one of the batch is told, whoever met it.
    if (slot.bad_place < 0 || place < slot.bad_place) {
      slot.bad_place = place;
      slot.status = std::move(status);
    }
    break;
  }
  worker->index.store(-1, std::memory_order_relaxed);
}

void Loader::Work(Worker* worker) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stop_ || fill_batch_ < opened_; });
    if (stop_) return;
    const int64_t batch = fill_batch_;
    const int64_t piece = fill_piece_++;
    if (fill_piece_ == Pieces(*SlotOf(batch).list, batch)) {
      ++fill_batch_;
      fill_piece_ = 0;
    }
    ++busy_;
    lock.unlock();
    FillPiece(batch, piece, worker);
    lock.lock();
    --busy_;
    if (--SlotOf(batch).pieces_left == 0 || busy_ == 0) done_.notify_all();
  }
}

void Loader::NameSlow(int64_t index, double seconds, bool done) {
  if (named_slow_.size() >= kSlowNamedMax || !named_slow_.insert(index).second) return;
  fprintf(stderr, "data: %s %s %.1f s to prepare%s\n", dataset_->NameOf(index).c_str(),
          done ? "took" : "has taken", seconds, done ? "" : " until now, and is waited for");
  if (named_slow_.size() == kSlowNamedMax) {
    fprintf(stderr, "data: that was slow sample %zu; no more are named\n", kSlowNamedMax);
  }
}

void Loader::WaitFor(const Slot& slot, std::unique_lock<std::mutex>* lock) {
  const auto ready = [&] { return slot.pieces_left == 0; };
  const std::chrono::duration<double> patience(std::max(options_.slow_seconds, kPatienceMin));
  while (!done_.wait_for(*lock, patience, ready)) {
    for (const Worker& worker : workers_) {
      const int64_t index = worker.index.load(std::memory_order_acquire);
      const Clock::duration begin(worker.begin.load(std::memory_order_relaxed));
      const double seconds = Seconds(Clock::now().time_since_epoch() - begin);
      if (index >= 0 && seconds > options_.slow_seconds) NameSlow(index, seconds, /*done=*/false);
    }
  }
}

bool Loader::Ready() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (next_take_ >= list_->end) return true;
  return next_take_ < opened_ && SlotOf(next_take_).pieces_left == 0;
}

absl::StatusOr<Batch> Loader::Next() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (next_take_ >= list_->end) return Batch{};
  const int64_t batch = next_take_++;
  const Clock::time_point begin = Clock::now();
  OpenSlots();  // taking a batch frees the slot of an older one
  Slot& slot = SlotOf(batch);
  if (threads_.empty()) {
    lock.unlock();
    const int64_t pieces = Pieces(*slot.list, batch);
    for (int64_t piece = 0; piece < pieces; ++piece) FillPiece(batch, piece, &workers_[0]);
    lock.lock();
    slot.pieces_left = 0;
  } else {
    WaitFor(slot, &lock);
  }
  const double seconds = Seconds(Clock::now() - begin);
  wait_seconds_ += seconds;
  if (batch == list_->first) first_wait_seconds_ += seconds;
  if (!slot.status.ok()) return slot.status;
  const int64_t count = Count(*slot.list, batch);
  if (count == options_.batch_size) return Batch{slot.inputs, slot.targets};
  return Batch{slot.inputs.narrow(0, 0, count), slot.targets.narrow(0, 0, count)};
}

}  // namespace ddprun
