// The commands: each runs to its end and returns ddprun's exit code (DESIGN 4.1).
#pragma once

#include "launcher/cli/options.h"
#include "launcher/cli/preflight.h"

namespace ddprun::cli {

inline constexpr int kExitBadUsage = 2;
inline constexpr int kExitInternal = 1;
inline constexpr int kExitNodesMissing = 3;

// `run`: coordinator and agent in this process. `coordinator`: without the agent, on a port.
int RunJob(const Options& options, const Surroundings& here);

int RunAgent(const Options& options, const Surroundings& here);

// `doctor`: looks at this machine and, by ssh, at its peers. Ends the process itself.
int RunDoctor(const Options& options);

// `logs`: shows what workers have printed; touches nothing. Signals have their usual effect.
int RunLogs(const LogsOptions& options);

}  // namespace ddprun::cli
