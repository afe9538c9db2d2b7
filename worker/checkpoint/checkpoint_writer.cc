#include "worker/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

// How long a rank waits for its own file system before it calls the checkpoint before it stuck.
constexpr double kSettleSeconds = 600;

class Stopwatch {
 public:
  explicit Stopwatch(double* total) : total_(total), begin_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    *total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  double* const total_;
  const std::chrono::steady_clock::time_point begin_;
};

// The other ranks of the machine wait for rank 0 in the step after its copy, so it may use what the
// machine has; but more threads than these are only others' disturbance: memory gives no more.
int CopyThreads() {
  constexpr unsigned kThreadsMax = 4;
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax));
}

void Warn(int64_t step, const char* what, const char* reason) {
  fprintf(stderr, "checkpoint of step %" PRId64 ": %s: %s\n", step, what, reason);
}

}  // namespace

std::string RngFileName(int rank, int world_size) {
  return absl::StrCat("rng-", rank, "-of-", world_size, ".safetensors");
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(
    ddprun_handle* client, const CheckpointTensors& tensors, const at::Device& device, bool async) {
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(client, device, async));
  std::vector<std::pair<std::string, std::vector<NamedTensor>>> files = {
      {RngFileName(ddprun_rank(client), ddprun_world_size(client)), writer->generators_}};
  if (ddprun_rank(client) == 0) {
    files.push_back({"model.safetensors", tensors.model});
    files.push_back({"optimizer.safetensors", tensors.optimizer});
    if (!tensors.average.empty()) files.push_back({"ema.safetensors", tensors.average});
  }
  for (auto& [name, list] : files) {
    absl::StatusOr<Snapshot> snapshot = Snapshot::Create(list, CopyThreads());
    if (!snapshot.ok()) return snapshot.status();
    writer->snapshots_.push_back(*std::move(snapshot));
    writer->file_names_.push_back(name);
  }
  writer->thread_ = std::thread([raw = writer.get()] { raw->Run(); });
  return writer;
}

CheckpointWriter::~CheckpointWriter() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool CheckpointWriter::InFlight() {
  std::lock_guard<std::mutex> lock(mutex_);
  return has_job_ || ddprun_checkpoint_in_flight(client_) != 0;
}

void CheckpointWriter::WaitForThread() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return populated_ && !has_job_; });
}

void CheckpointWriter::Write(const TrainState& state, const std::string& best_mark) {
  const Stopwatch stopwatch(&seconds_);
  ddprun_phase(client_, DDPRUN_PHASE_CHECKPOINT, nullptr);
  WaitForThread();
  NoteOutcome(kSettleSeconds);
  begun_step_ = state.step;
  if (ddprun_checkpoint_begin(client_, state.step) != 0) {
    const std::string reason = ddprun_error(client_);
    Warn(state.step, "cannot begin", reason.c_str());
    ddprun_checkpoint_fail(client_, state.step, reason.c_str());
    return;
  }
  Capture();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    job_ = {state.step, TrainStateToJson(state), best_mark};
    has_job_ = true;
  }
  changed_.notify_all();
  if (!async_) {
    WaitForThread();
    ddprun_checkpoint_wait(client_, state.step, kSettleSeconds);
  }
}

void CheckpointWriter::NoteOutcome(double timeout_seconds) {
  if (begun_step_ > committed_step_ &&
      ddprun_checkpoint_wait(client_, begun_step_, timeout_seconds) == 0) {
    committed_step_ = begun_step_;
  }
}

int64_t CheckpointWriter::Settled(double timeout_seconds) {
  const Stopwatch stopwatch(&seconds_);
  WaitForThread();
  NoteOutcome(timeout_seconds);
  return committed_step_;
}

void CheckpointWriter::Capture() {
  const Stopwatch stopwatch(&capture_seconds_);
  ++captures_;
  const std::vector<NamedTensor> states = GeneratorStates(device_);
  for (size_t i = 0; i < states.size(); ++i) generators_[i].tensor.copy_(states[i].tensor);
  for (Snapshot& snapshot : snapshots_) snapshot.Capture();
}

CheckpointWriter::Cost CheckpointWriter::cost() const {
  Cost cost;
  for (const Snapshot& snapshot : snapshots_) {
    cost.bytes += static_cast<int64_t>(snapshot.header().size() + snapshot.data_bytes());
  }
  if (captures_ > 0) cost.stall_seconds = capture_seconds_ / static_cast<double>(captures_);
  if (writes_ > 0) cost.write_seconds = write_seconds_ / static_cast<double>(writes_);
  return cost;
}

absl::Status CheckpointWriter::WaitCommitted(int64_t step, double timeout_seconds) {
  const Stopwatch stopwatch(&seconds_);
  ddprun_phase(client_, DDPRUN_PHASE_CHECKPOINT, "waiting for the commit");
  WaitForThread();
  const int error = ddprun_checkpoint_wait(client_, step, timeout_seconds);
  if (error == 0) {
    committed_step_ = step;
    return absl::OkStatus();
  }
  const std::string message = ddprun_error(client_);
  return error == DDPRUN_ETIMEOUT ? absl::DeadlineExceededError(message)
                                  : absl::AbortedError(message);
}

void CheckpointWriter::Skip(int64_t step) {
  const Stopwatch stopwatch(&seconds_);
  if (ddprun_rank(client_) == 0)
    ddprun_checkpoint_skip(client_, step, "the one before is still in flight");
}

void CheckpointWriter::Run() {
  for (Snapshot& snapshot : snapshots_) snapshot.Populate();
  std::unique_lock<std::mutex> lock(mutex_);
  populated_ = true;
  changed_.notify_all();
  while (true) {
    changed_.wait(lock, [this] { return has_job_ || stop_; });
    if (!has_job_) return;
    const Job job = job_;
    lock.unlock();
    double seconds = 0;
    {
      const Stopwatch stopwatch(&seconds);
      WriteFiles(job);
    }
    lock.lock();
    write_seconds_ += seconds;
    ++writes_;
    has_job_ = false;
    changed_.notify_all();
  }
}

bool CheckpointWriter::WriteSnapshot(int64_t step, const std::string& name,
                                     const Snapshot& snapshot) {
  const ddprun_piece pieces[] = {{snapshot.header().data(), snapshot.header().size()},
                                 {snapshot.data(), snapshot.data_bytes()}};
  return ddprun_checkpoint_writev(client_, step, name.c_str(), pieces,
                                  snapshot.data_bytes() > 0 ? 2 : 1) == 0;
}

void CheckpointWriter::WriteFiles(const Job& job) {
  bool written = true;
  for (size_t i = 0; i < snapshots_.size() && written; ++i) {
    written = WriteSnapshot(job.step, file_names_[i], snapshots_[i]);
  }
  if (written && ddprun_rank(client_) == 0) {
    written = ddprun_checkpoint_write(client_, job.step, "trainer_state.json",
                                      job.state_json.data(), job.state_json.size()) == 0;
  }
  if (written && ddprun_rank(client_) == 0 && !job.best_mark.empty()) {
    written = ddprun_checkpoint_write(client_, job.step, kBestMark, job.best_mark.data(),
                                      job.best_mark.size()) == 0;
  }
  if (written) written = ddprun_checkpoint_finish(client_, job.step) == 0;
  if (written) return;
  const std::string reason = ddprun_error(client_);
  Warn(job.step, "not written", reason.c_str());
  ddprun_checkpoint_fail(client_, job.step, reason.c_str());
}

}  // namespace ddprun
