// What --dry-run shows: ranks and places, what each worker executes, the resolved configuration,
// and what is added to the environment. Pure.
#pragma once

#include <string>

#include "launcher/cli/cluster.h"
#include "launcher/cli/options.h"
#include "launcher/cli/preflight.h"

namespace ddprun::cli {

std::string DryRunText(const Options& options, const RunPlan& plan, const Surroundings& here,
                       const ClusterPlan& cluster);
// Of a member, which takes the job from the coordinator.
std::string MemberDryRunText(const ClusterPlan& cluster);

}  // namespace ddprun::cli
