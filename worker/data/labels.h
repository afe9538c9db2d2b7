// Labels against the number of classes, before anything is trained: a label that the model has no
// output for would crash in the loss, or count as wrong for ever. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/config/train_config.h"

namespace ddprun {

// How many classes a model for these training data has: [model] classes where it is given.
int64_t ClassesFor(const TrainConfig& config, int64_t classes_of_training_data);

// OK when `label` of sample `index` in `file` is one of 0 … classes−1; else INVALID_ARGUMENT with
// the fix.
absl::Status CheckLabel(const TrainConfig& config, const std::string& file, int64_t index,
                        int64_t label, int64_t classes);

}  // namespace ddprun
