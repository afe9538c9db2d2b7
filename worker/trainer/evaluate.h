// Accuracy on a data set over all ranks. Every sample is counted exactly once, whatever the number
// of ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/trainer/forward.h"

namespace ddprun {

struct Accuracy {
  int64_t correct = 0;
  int64_t total = 0;
  double value() const {
    return total == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(total);
  }
};

// This rank's part: samples rank, rank + world_size, … in batches. Leaves the model in training
// mode.
absl::StatusOr<Accuracy> CountCorrect(Model* model, ForwardPass* forward,
                                      const std::shared_ptr<const Dataset>& dataset, int rank,
                                      int world_size, const at::Device& device);

// Sum over all ranks; `communicator` may be null for one rank.
absl::StatusOr<Accuracy> SumOverRanks(Accuracy mine, Communicator* communicator,
                                      const at::Device& device);

}  // namespace ddprun
