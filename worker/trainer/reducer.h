// Averages gradients over the data-parallel ranks while backward is still running.
//
// The gradients of all parameters are views of a few flat buffers ("buckets",
// parallel/bucket_layout.h). When the last gradient of a bucket has been accumulated, and all
// buckets before it were handed over, the bucket is all-reduced (kAvg); so every rank reduces in
// the order of bucket numbers, whatever order its gradients came in.
//
// One update:
//   reducer->Prepare(false); loss.backward(); reducer->Finish();     for all micro-steps but the
//   last reducer->Prepare(true);  loss.backward(); reducer->Finish();     then step the optimizer
// Prepare decides, not a scope around forward (TR7). Gradients are sums over the micro-steps,
// averaged over ranks; divide the loss for a mean. The first Prepare after a synchronised Finish
// zeroes all buckets in place; nobody else needs to (TR11).
//
// Threads: all calls belong to the training thread. Hooks run in backward, while that thread waits
// in it. Invariants: each p.grad() is the view of its bucket from Prepare to the next Prepare,
// except that after a synchronised Finish with allow_unused it is undefined for parameters that no
// rank used (TR4). After an error the reducer is of no more use: the ranks may be in different
// places. Layout: made in reverse order of registration, rebuilt once in the order in which rank
// 0's gradients came in the first synchronised step. layout() is then what the next step uses, and
// what a checkpoint must keep. One that was loaded from a checkpoint is used from the first step
// and never rebuilt (DESIGN: bit-identity).
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/parallel/bucket_layout.h"
#include "worker/trainer/reducer_tensors.h"

namespace ddprun {

struct ReducerOptions {
  int64_t first_bucket_bytes = kFirstBucketBytes;
  int64_t bucket_bytes = kDefaultBucketBytes;
  // False: a parameter without gradient is an error that names it (TR2). True costs one small
  // all-reduce a step.
  bool allow_unused = false;
  // Float32 buckets travel as bfloat16: half the bytes. Each gradient is divided by the number of
  // ranks, rounded to 8 bits, and rounded again after each addition; NaN and infinity stay what
  // they are. The control slots travel in float32, in a small all-reduce of their own.
  bool compress = false;
  // From a checkpoint; validated against the parameters.
  std::optional<BucketLayout> layout;
};

class GradientReducer {
 public:
  // `parameters`: the trainable ones, leaves of one device, in registration order, the same on
  // every rank. communicator: null for a single rank; outlives the reducer.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(NamedTensors parameters,
                                                                 Communicator* communicator,
                                                                 const ReducerOptions& options);
  // If all-reduces are still under way (after an error), the communicator is aborted.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Before each forward. sync: this backward is the last of the update, its gradients are reduced.
  void Prepare(bool sync);
  // After each backward. Synchronised: every bucket is reduced (on a GPU: the current stream waits
  // for it).
  absl::Status Finish();

  // Numbers that travel with the gradients, so that ranks agree on them without a collective of
  // their own. The flag is set before Prepare(true); losses are added between a Prepare and its
  // backward, as float32 scalars on the device of the gradients, which waits for nothing.
  void SetFlag(float value) { flag_ = value; }
  void AddLoss(const torch::Tensor& loss);
  // Means over all ranks, after a synchronised Finish: of the flags, and of each rank's sum of
  // losses. Reading them on a GPU waits for the stream.
  struct Control {
    float flag = 0;
    float loss = 0;
  };
  Control control() const;

  const BucketLayout& layout() const { return next_layout_ ? *next_layout_ : layout_; }
  bool rebuilt() const { return rebuilt_; }
  const std::vector<BucketParameter>& parameters() const { return descriptions_; }
  // The flat buffers without what does not belong to a gradient, but for gaps that are zero: for a
  // norm over all gradients, or for scaling them at once.
  const std::vector<torch::Tensor>& flat_gradients() const { return flat_gradients_; }

 private:
  GradientReducer(NamedTensors parameters, Communicator* communicator,
                  const ReducerOptions& options);
  absl::Status CheckParameters() const;
  void UseLayout(BucketLayout layout);
  void AttachGradients();
  void AddHooks();
  void GradientArrived(size_t parameter, bool defined);
  void Launch();
  void Reduce(const torch::Tensor& buffer, ReduceOp op);
  void ReduceCompressed(size_t bucket);
  void Decompress();
  absl::Status CheckAllUsed() const;
  absl::Status WaitForWorks();
  absl::Status DetachUnused();
  absl::Status AgreeOnLayout();
  torch::Tensor ControlSlots() const;
  bool alone() const { return communicator_ == nullptr || communicator_->size() == 1; }

  enum class State { kIdle, kAccumulating, kSynchronizing };

  NamedTensors parameters_;
  Communicator* const communicator_;
  const ReducerOptions options_;
  std::vector<BucketParameter> descriptions_;
  BucketLayout layout_;
  std::optional<BucketLayout> next_layout_;  // agreed on, taken up by the next Prepare
  bool rebuilt_ = false;

  std::vector<torch::Tensor> flats_;           // by bucket
  std::vector<torch::Tensor> flat_gradients_;  // the same up to the control slot
  std::vector<torch::Tensor> views_;           // by parameter
  std::vector<size_t> bucket_of_;              // by parameter
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;  // autograd holds them weakly
  std::vector<uintptr_t> hooks_;

  State state_ = State::kIdle;
  bool fresh_ = true;          // the next Prepare begins an update
  std::vector<char> used_;     // by parameter: got a gradient in this update
  std::vector<char> arrived_;  // by parameter: got one in this synchronised backward
  std::vector<int> order_;     // in which they arrived
  std::vector<int> pending_;   // by bucket: gradients that have not arrived
  size_t next_bucket_ = 0;     // the first one not handed over
  std::vector<WorkPtr> works_;
  std::vector<torch::Tensor> compressed_;  // by bucket; undefined where it travels as it is
  torch::Tensor sent_control_;
  absl::Status error_;  // of a hook
  float flag_ = 0;
  torch::Tensor reduced_control_;
};

}  // namespace ddprun
