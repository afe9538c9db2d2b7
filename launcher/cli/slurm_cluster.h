// The nodes of a step of Slurm as a cluster: node 0 hosts the coordinator on a port that the system
// chooses, and tells the others by the rendezvous file; they wait for it. And what follows a stop:
// the job is queued again.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/cli/cluster.h"
#include "launcher/cli/options.h"
#include "launcher/cli/preflight.h"

namespace ddprun::cli {

// REQUIRES: options.slurm. `security` holds the user's own secret, if there is one. As PlanCluster;
// a member waits for the rendezvous file, at most the join timeout.
absl::StatusOr<ClusterPlan> PlanSlurmCluster(const Options& options, const Surroundings& here,
                                             net::Security security, const ClusterWait& wait);

// Queues a job that was stopped again by scontrol, unless somebody has cancelled it (WhyNoRequeue
// in slurm.h); returns the line that says
// what has come of it. Blocks for at most 20 s.
std::string RequeueSlurmJob(const std::string& job);

}  // namespace ddprun::cli
