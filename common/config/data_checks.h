// What can be said of a configuration's data once their number is known, beside ValidateData. Pure;
// thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/config/train_config.h"

namespace ddprun {

// Whether ValidateData tells all that can be known before the start; else ddp-worker --check does.
bool IsCheckedWithoutTorch(const TrainConfig& config);

// Whether so many samples give `world_size` ranks a whole update, and a run that is at least as
// long as its warm-up. `what`: file or data, for the message.
absl::Status CheckSampleCount(const TrainConfig& config, const std::string& what, int64_t samples,
                              int world_size);

// How many classes a model for these training data has: [model] classes where it is given.
int64_t ClassesFor(const TrainConfig& config, int64_t classes_of_training_data);

// OK when `label` of sample `index` in `file` is one of 0 … classes−1: a label that the model has
// no output for would crash in the loss, or count as wrong for ever.
absl::Status CheckLabel(const TrainConfig& config, const std::string& file, int64_t index,
                        int64_t label, int64_t classes);

}  // namespace ddprun
