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

// Whether so many samples give `world_size` ranks a whole update. `what`: file or data, for the
// message.
absl::Status CheckSampleCount(const TrainConfig& config, const std::string& what, int64_t samples,
                              int world_size);

}  // namespace ddprun
