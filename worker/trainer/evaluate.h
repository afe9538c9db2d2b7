// Evaluation on the test split over all ranks: the loss that training uses and, where the model
// classifies, the share of right predictions. Every sample counts exactly once, whatever the number
// of ranks: rank r takes samples r, r + ranks, …; ranks may have unequally many batches, since an
// evaluation has no collectives but the sum at its end. All calls belong to the training thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/trainer/forward.h"

namespace ddprun {

struct Evaluation {
  int64_t samples = 0;
  int64_t targets = 0;     // that are not ignored: one a sample, or one a token
  int64_t correct = 0;     // of them
  double loss_sum = 0;     // over the targets
  bool classifies = true;  // `correct` means something

  double loss() const;      // the mean over all targets; NaN without any
  double accuracy() const;  // 0 … 1
};

struct EvaluationOptions {
  int rank = 0;
  int world_size = 1;
  int64_t batch_size = 64;  // of training; small samples are taken in larger batches
  int threads = 0;          // of the loader
  at::Device device = at::kCPU;
};

// This rank's part. Leaves the model in training mode.
absl::StatusOr<Evaluation> EvaluatePart(Model* model, ForwardPass* forward,
                                        const std::shared_ptr<const Dataset>& dataset,
                                        const EvaluationOptions& options);

struct EvaluationSum {
  Evaluation evaluation;
  int64_t failed = 0;  // ranks that could not evaluate their part
};

// Sum over all ranks, the same bits on each; `communicator` may be null for one rank. A rank whose
// part failed takes part all the same, so that no other waits for it.
absl::StatusOr<EvaluationSum> SumOverRanks(const absl::StatusOr<Evaluation>& mine,
                                           Communicator* communicator, const at::Device& device);

// "test accuracy 0.9123 (9123 of 10000), loss 0.2544"; "test loss 3.2153, perplexity 24.91, token
// accuracy 0.3912 (…)" where a sample has several targets.
std::string EvaluationSummary(const Evaluation& evaluation);

// Exchanges the parameters' values with `others` (same order and shapes) while it lives: an
// evaluation of averaged weights. Nothing happens with an empty list.
class SwappedWeights {
 public:
  SwappedWeights(std::vector<NamedTensor> parameters, std::vector<NamedTensor> others);
  ~SwappedWeights();
  SwappedWeights(const SwappedWeights&) = delete;
  SwappedWeights& operator=(const SwappedWeights&) = delete;

 private:
  void Swap();
  const std::vector<NamedTensor> parameters_;
  const std::vector<NamedTensor> others_;
};

}  // namespace ddprun
