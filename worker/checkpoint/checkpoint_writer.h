// Writes checkpoints while training goes on: a copy at the step edge (the only part that the
// training thread waits for), then a background thread writes the files through libddprun. At most
// one is in flight.
//
// Files: rank 0 writes model.safetensors, optimizer.safetensors, trainer_state.json and, where
// averages are kept, ema.safetensors; every rank writes rng-<rank>-of-<n>.safetensors. A file that
// cannot be written drops the checkpoint on every rank, and training goes on. Threads: all calls
// from the training thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/generators.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/checkpoint/train_state.h"
#include "worker/client/ddprun.h"

namespace ddprun {

struct CheckpointTensors {
  std::vector<NamedTensor> model;  // parameters and buffers
  std::vector<NamedTensor> optimizer;
  std::vector<NamedTensor> average;  // averaged parameters, and buffers; empty: none are kept
};

// A checkpoint that holds this file is kept by the launcher until a later one has it, too
// (docs/checkpoints.md).
inline constexpr char kBestMark[] = "best.json";

std::string RngFileName(int rank, int world_size);

class CheckpointWriter {
 public:
  // `client` outlives the writer. The tensors are updated in place by training, never replaced.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(ddprun_handle* client,
                                                                  const CheckpointTensors& tensors,
                                                                  const at::Device& device,
                                                                  bool async);
  ~CheckpointWriter();

  // True while files are being written or the launcher has not settled the last checkpoint.
  bool InFlight();
  // Takes the state of this moment and begins to write it. Waits for an earlier one that is in
  // flight. `best_mark`: not empty when it is the best so far, content of the file kBestMark.
  void Write(const TrainState& state, const std::string& best_mark = "");
  // Until the checkpoint of `step` is committed. ABORTED when it was dropped, DEADLINE_EXCEEDED
  // when it is not settled in time.
  absl::Status WaitCommitted(int64_t step, double timeout_seconds);
  // A periodic checkpoint is left out on all ranks; rank 0 says so.
  void Skip(int64_t step);
  // Time that the training thread has spent in the calls above.
  double seconds() const { return seconds_; }
  // What one checkpoint of this rank costs, as means over those that were written.
  struct Cost {
    double stall_seconds = 0;  // in which training waits for the copy
    double write_seconds = 0;  // in the background, until the files are safe
    int64_t bytes = 0;
  };
  // After WaitCommitted.
  Cost cost() const;
  // The newest step of this process that is committed when what is in flight is settled, for which
  // it waits at most so long; −1: none.
  int64_t Settled(double timeout_seconds);

 private:
  struct Job {
    int64_t step = 0;
    std::string state_json;
    std::string best_mark;
  };
  CheckpointWriter(ddprun_handle* client, const at::Device& device, bool async)
      : client_(client), async_(async), device_(device), generators_(GeneratorStates(device)) {}
  void WaitForThread();
  void NoteOutcome(double timeout_seconds);
  void Capture();
  void Run();
  void WriteFiles(const Job& job);
  bool WriteSnapshot(int64_t step, const std::string& name, const Snapshot& snapshot);

  ddprun_handle* const client_;
  const bool async_;
  std::vector<Snapshot> snapshots_;      // rng, and on rank 0 model, optimizer
  std::vector<std::string> file_names_;  // of the snapshots
  const at::Device device_;
  const std::vector<NamedTensor> generators_;  // what the rng snapshot copies from
  double seconds_ = 0;
  double capture_seconds_ = 0;
  int64_t captures_ = 0;
  int64_t begun_step_ = -1;
  int64_t committed_step_ = -1;  // as far as it was noted

  std::mutex mutex_;
  std::condition_variable changed_;
  Job job_;
  bool populated_ = false;  // there is memory for the copies
  bool has_job_ = false;
  double write_seconds_ = 0;
  int64_t writes_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ddprun
