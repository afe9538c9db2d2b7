#include "worker/trainer/loss_weights.h"

#include <algorithm>
#include <numeric>

#include "worker/data/dataset.h"

namespace ddprun {

LossWeights LossWeights::OfSizes(const std::vector<int64_t>& sizes) {
  LossWeights weights;
  weights.sizes_ = sizes;
  weights.total_ = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  weights.even_ =
      std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size == sizes.front(); });
  return weights;
}

absl::StatusOr<LossWeights> LossWeights::OfTargets(const std::vector<at::Tensor>& targets,
                                                   Communicator* communicator) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> counts;
  counts.reserve(targets.size());
  for (const at::Tensor& one : targets) counts.push_back(one.ne(kIgnoredTarget).sum());
  const at::Tensor mine = at::stack(counts);
  at::Tensor total = mine.sum();
  int ranks = 1;
  if (communicator != nullptr) {
    ranks = communicator->size();
    const WorkPtr work =
        communicator->AllReduce(total.data_ptr(), 1, DataType::kInt64, ReduceOp::kSum);
    if (absl::Status status = work->Wait(); !status.ok()) return status;
  }
  LossWeights weights;
  weights.weights_ =
      (mine.to(at::kDouble) * ranks / total.clamp_min(1).to(at::kDouble)).to(at::kFloat);
  return weights;
}

at::Tensor LossWeights::Apply(const at::Tensor& mean_loss, int micro_batch) const {
  if (weights_.defined()) {
    const at::Tensor weight = weights_[micro_batch];
    // The mean over no target is NaN, and 0 × NaN too.
    return at::where(weight > 0, mean_loss * weight, at::zeros({}, mean_loss.options()));
  }
  const auto micro_batches = static_cast<int64_t>(sizes_.size());
  if (micro_batches == 1) return mean_loss;
  if (even_) return mean_loss / micro_batches;
  return mean_loss * (static_cast<double>(sizes_[static_cast<size_t>(micro_batch)]) /
                      static_cast<double>(total_));
}

}  // namespace ddprun
