// [model] weights: what a new run begins with instead of random numbers, from a safetensors file of
// ddprun's own or of Python's (safetensors.torch.save_file of a state_dict).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/model/model.h"

namespace ddprun {

// Copies weights and buffers from the file into the model. Names and shapes must be the model's;
// counters "num_batches_tracked", which old files lack, stay as they are then. A tied parameter may
// stand there under any of its names, or equal ones under several. INVALID_ARGUMENT names the
// differences.
absl::Status LoadInitialWeights(const std::string& path, const Model& model);

}  // namespace ddprun
