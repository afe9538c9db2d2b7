// trainer_state.json: where a run stands. Plain values, no LibTorch. The same on every rank at a
// step edge.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/train_config.h"

namespace ddprun {

struct TrainState {
  int64_t step = 0;           // updates done
  int64_t epoch = 0;          // 0-based; the epoch that the next update belongs to
  int64_t step_in_epoch = 0;  // updates of this epoch done under the world size of the checkpoint
  int64_t samples_in_epoch = 0;  // samples of this epoch that all ranks together have used:
                                 // position in the sampler's order
  int64_t samples_seen = 0;      // since the start of the run
  int64_t world_size = 1;
  int64_t data_samples = 0;  // in the training data; 0: not noted
  double last_loss = 0;
  // Evaluations (trainer/best.h).
  int64_t evaluated_step = 0;  // of the newest one
  int64_t best_step = 0;       // 0: none yet
  double best_value = 0;
  int64_t evaluations_without_improvement = 0;
  std::string all_reduce;     // what gradients went through (Communicator::AllReducePath); empty
                              // for one rank, or when not noted
  std::string bucket_layout;  // as the reducer writes it; empty when no communicator was used
  TrainConfig config;         // the configuration it was trained with
};

std::string TrainStateToJson(const TrainState& state);
absl::StatusOr<TrainState> TrainStateFromJson(const std::string& json);

}  // namespace ddprun
