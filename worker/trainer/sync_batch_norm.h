// SyncBN: batch norm whose statistics in training are those of the batches of all ranks together,
// weighted by how many values each rank has (TR14), so that N ranks give what one rank gives on the
// whole batch, down to one sample a rank (TR13).
//
//   forward:  all-gather of (mean, deviation, count) by channel; the combined ones normalise, and
//             move the running statistics (the variance unbiased, by the count of all ranks)
//   backward: all-reduce of (Σ dy, Σ dy·(x − mean)); gradients of weight and bias stay this rank's,
//             the reducer averages them
//
// Its collectives have a communicator of their own: backward waits for each of them, and behind the
// buckets of the reducer it would wait for those, too. Every rank must run the same layers in the
// same order, forward and backward, an empty batch included; autograd's order for equal graphs is
// the same, and recompute repeats the all-gathers at the same place on every rank. A collective
// that failed leaves numbers without meaning and its reason in status(), to be asked for before
// they are used. Belongs to the training thread (and backward's, while that waits).
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/config/train_config.h"
#include "worker/comm/communicator.h"
#include "worker/model/layers/batch_norm.h"
#include "worker/model/model.h"

namespace ddprun {

// Batch norm layers of the model; those inside a TorchScript module are not among them.
std::vector<BatchNorm2d*> BatchNormLayers(const Model& model);

// parallel.sync_bn for these ranks: `auto` is on for small batches. INVALID_ARGUMENT for `on` where
// the model has no layer to synchronise.
absl::StatusOr<bool> UseSyncBatchNorm(const TrainConfig& config, const Model& model,
                                      int world_size);

class SyncBatchNorm {
 public:
  explicit SyncBatchNorm(std::unique_ptr<Communicator> communicator);
  // The layers keep a reference to this.
  void Attach(const std::vector<BatchNorm2d*>& layers);
  at::Tensor Run(BatchNorm2d& layer, const at::Tensor& input);
  // Of the first collective that failed.
  const absl::Status& status() const { return status_; }

  // Spent in its collectives until now, on CPUs: in waiting for the slowest rank, mostly. On GPUs
  // the device waits, and this stays 0.
  double wait_seconds() const { return wait_seconds_; }

  // For the autograd function: in place on `values`; output of {ranks, n}.
  void AllReduce(at::Tensor& values);
  at::Tensor AllGather(const at::Tensor& values);

 private:
  void Await(const at::Tensor& values, const std::function<WorkPtr()>& begin);

  const std::unique_ptr<Communicator> communicator_;
  absl::Status status_;
  double wait_seconds_ = 0;
};

}  // namespace ddprun
