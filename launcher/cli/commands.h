// The commands: each runs to its end and returns ddprun's exit code (DESIGN 4.1).
#pragma once

#include "launcher/cli/cluster.h"
#include "launcher/cli/options.h"
#include "launcher/cli/preflight.h"

namespace ddprun::cli {

inline constexpr int kExitBadUsage = 2;
inline constexpr int kExitInternal = 1;
inline constexpr int kExitNodesMissing = 3;

// `run`: coordinator and agent in this process, or the agent alone where another node hosts.
// `coordinator`: without the agent, on a port.
int RunJob(const Options& options, const Surroundings& here);

int RunAgent(const Options& options, const Surroundings& here);

// This node among others, as an agent: `run` as a member, and `agent`.
int RunMember(const Options& options, const Surroundings& here, const ClusterPlan& cluster);

// PlanCluster for a command: says what it waits for, and ends on a stop signal. Where there is no
// plan, *code is what to return; the reason has been printed.
std::optional<ClusterPlan> PlanClusterOrExplain(const Options& options, const Surroundings& here,
                                                int* code);

// `doctor`: looks at this machine and, by ssh, at its peers. Ends the process itself.
int RunDoctor(const Options& options);

// `logs`: shows what workers have printed; touches nothing. Signals have their usual effect.
int RunLogs(const LogsOptions& options);

// `plan`: says what a train.cfg would take. Signals have their usual effect.
int ShowPlan(const Options& options, const Surroundings& here);

// `ckpt`: 2 for what was typed wrongly, 1 for bad data. Signals have their usual effect.
int RunCkpt(const Options& options, const Surroundings& here);

// `tokens`: files of tokens from text. Exit codes and signals as of ckpt.
int RunTokens(const Options& options);

}  // namespace ddprun::cli
