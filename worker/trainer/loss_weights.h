// What each micro-batch's mean loss counts in an update, so that the gradients are those of the
// mean over all valid targets of all ranks (TR47), whatever sizes the micro-batches have:
//   weight = valid targets of the micro-batch × ranks / valid targets of the update on all ranks
// (the reducer averages over ranks). Belongs to the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace ddprun {

class LossWeights {
 public:
  // For targets that all count, in micro-batches of these sizes, the same on every rank: known
  // without a word to anyone. Equal sizes give 1/n.
  static LossWeights OfSizes(const std::vector<int64_t>& sizes);
  // For targets of which some are kIgnoredTarget: counted on their device, summed over the ranks.
  // `communicator` may be null for one rank. Waits for no GPU. A micro-batch without a valid target
  // has the loss 0, and gradients of 0.
  static absl::StatusOr<LossWeights> OfTargets(const std::vector<at::Tensor>& targets,
                                               Communicator* communicator);

  // The part that micro-batch number `micro_batch` has in the loss of the update.
  at::Tensor Apply(const at::Tensor& mean_loss, int micro_batch) const;

 private:
  std::vector<int64_t> sizes_;  // empty: counted
  int64_t total_ = 0;
  bool even_ = false;
  at::Tensor weights_;  // by micro-batch, float32
};

}  // namespace ddprun
