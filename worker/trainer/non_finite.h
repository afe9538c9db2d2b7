// Loss or gradients that are not finite: seen in the update in which they come up, before they
// reach the weights, and traced to the first place where they were not.
//
// After the reduction a number that is not finite is one on every rank (the loss travels with the
// gradients), so all ranks see it in the same step. Each then computes its micro-batches once more,
// with the same data and random numbers, and looks at everything on the way; the ranks exchange how
// early they found something. So SyncBN's collectives match, too. Under fp16 the loss scaler skips
// such updates (scaler.h); only where it finds that no scale helps is the update explained.
//
// Cost: one sum over the gradients in each update. Belongs to the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/data/loader.h"
#include "worker/model/model.h"
#include "worker/trainer/forward.h"

namespace ddprun {

// Where it was found, in the order of a computation: a smaller place is nearer to the cause.
struct NonFiniteFinding {
  int64_t place = 0;
  std::string what;
};
inline constexpr int64_t kPlaceWeights = 0;
inline constexpr int64_t kPlaceInputs = 1;
inline constexpr int64_t kPlaceBlocks = 2;  // and on

class NonFiniteWatch {
 public:
  // `model` and `forward` outlive it. `enabled`: [checks] non_finite; `scaled`: under fp16.
  NonFiniteWatch(Model* model, ForwardPass* forward, const at::Device& device, bool enabled,
                 bool scaled);

  // Before anything random is drawn for it.
  void BeginUpdate();
  // Whether loss and gradients are looked at in each update.
  bool watches() const { return enabled_ && !scaled_; }
  // After the reduction: whether the gradients let the update go on.
  bool Finite(const std::vector<at::Tensor>& flat_gradients) const;

  struct Update {
    int64_t number = 0;        // the step that it would have made
    bool loss_finite = false;  // else the gradients alone are not
    int rank = 0;
    Loader* batches = nullptr;      // started with this rank's samples of the update, in order
    std::vector<int64_t> samples;   // their numbers
    const Dataset* data = nullptr;  // which has names for them
    std::string scaler_verdict;     // under fp16: why the loss scaler gives up
  };
  // The error of this rank after Finite() was false, or the loss scaler gave up. Collective.
  absl::Status Explain(const Update& update, Communicator* communicator);

 private:
  absl::StatusOr<NonFiniteFinding> Find(const Update& update);
  NonFiniteFinding FindIn(const Batch& batch, const std::vector<int64_t>& samples,
                          const Dataset& data, int micro_batch);

  Model* const model_;
  ForwardPass* const forward_;
  const at::Device device_;
  const bool enabled_;
  const bool scaled_;
  at::Tensor generator_;  // state of LibTorch's generator when the update began
};

// The first of the tensors that holds a number that is not finite: "fc.weight and 2 more"; "" when
// none does, which costs one pass over them.
std::string FirstNonFinite(const std::vector<NamedTensor>& tensors);

// Names of the samples whose values are not finite, "sample 7 (a.jpg), sample 19 (b.jpg) and 3
// more"; "" when all are. `values` has a row for each of the samples: inputs, or what became of
// them.
std::string NonFiniteSamples(const at::Tensor& values, const std::vector<int64_t>& samples,
                             const Dataset& data);

}  // namespace ddprun
