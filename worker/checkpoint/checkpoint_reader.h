// Reads a committed checkpoint (a folder that the launcher has verified) back into a trainer.
// Errors name the file; FAILED_PRECONDITION means that the checkpoint is of another model or
// configuration.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/train_state.h"

namespace ddprun {

// trainer_state.json as it is.
absl::StatusOr<TrainState> ReadTrainState(const std::string& dir);
// The same, checked against the configuration (CompareForResume).
absl::StatusOr<TrainState> ReadTrainState(const std::string& dir, const TrainConfig& config);

// Weights, buffers, averaged weights where they are kept, and optimizer state.
absl::Status ReadCheckpointTensors(const std::string& dir, const CheckpointTensors& tensors);

// This rank's generators. REQUIRES: the checkpoint has the same world size. A GPU's is left as it
// is when the checkpoint was written without one.
absl::Status ReadRng(const std::string& dir, int rank, int world_size, const at::Device& device);

}  // namespace ddprun
