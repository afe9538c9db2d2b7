// The parts of a JobSpec that speak of devices, and what this machine's workers get of it.
#pragma once

#include "absl/status/status.h"
#include "launcher/cli/preflight.h"

namespace ddprun::cli {

// device and gpus. What was not given is taken from `before` (may be null).
absl::Status FillDevice(const Options& o, const Surroundings& here, const v1::JobSpec* before,
                        RunPlan* plan);

// plan->places, where the workers run on this machine; errors that the agent would come to. The
// rest of the spec has been filled in.
absl::Status FillPlaces(const Options& o, const Surroundings& here, RunPlan* plan);

}  // namespace ddprun::cli
