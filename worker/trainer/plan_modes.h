// What ddp-worker answers before a training: `--check N`, whether N ranks can train the
// configuration of DDPRUN_TRAIN_CONFIG, `--check-resumed N`, whether they can go on with it from a
// checkpoint, and `--plan N`, what that would take (docs/plan.md).
// On the CPU; starts no communication.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/train_config.h"

namespace ddprun {

// The mode's exit code: 0, or 2 with one line on standard error.
int RunPlanMode(const std::string& mode, const std::string& world_size);

absl::Status CheckJob(const TrainConfig& config, int world_size, bool resumed = false);
// One JSON object.
absl::StatusOr<std::string> PlanJson(const TrainConfig& config, int world_size);

}  // namespace ddprun
