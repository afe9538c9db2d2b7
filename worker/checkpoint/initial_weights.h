// [model] weights: what a new run begins with instead of random numbers, from a safetensors file of
// ddprun's own or of Python's (safetensors.torch.save_file of a state_dict).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/model/model.h"

namespace ddprun {

// Copies weights and buffers from the file into the model. Names and shapes must be the model's;
// counters "num_batches_tracked", which old files lack, stay as they are then. A tied parameter may
// stand there under any of its names, or equal ones under several. What has a name that begins with
// one of the texts in `except` (commas between them) stays as it is, whatever the file says of it:
// a new head on trained layers. INVALID_ARGUMENT names the differences, and a text that no name of
// the model begins with.
absl::Status LoadInitialWeights(const std::string& path, const std::string& except,
                                const Model& model);

}  // namespace ddprun
