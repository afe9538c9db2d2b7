// What `ddprun plan` shows: ddp-worker's answer (worker/trainer/plan_modes.h) for people. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ddprun::cli {

// `json`: the object of `ddp-worker --plan`. INTERNAL where it is none.
absl::StatusOr<std::string> PlanText(const std::string& json, const std::string& config_path);

}  // namespace ddprun::cli
