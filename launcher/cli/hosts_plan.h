// `ddprun --hosts`: the coordinator runs here, an agent on each host. What --hosts means for the
// other options, and what each agent is told.
//
// PlanHosts looks at names and network cards; it starts nothing. Errors are INVALID_ARGUMENT (exit
// code 2) and name the option and the fix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/cluster.h"
#include "launcher/cli/options.h"
#include "launcher/cli/preflight.h"
#include "launcher/cli/remote_agents.h"

namespace ddprun::cli {

struct PlannedHost {
  HostEntry entry;
  bool here = false;        // this machine
  std::string coordinator;  // the address (without port) at which it reaches the coordinator
};

struct HostsPlan {
  std::vector<PlannedHost> hosts;
  RemotePlace place;
  std::string listen_address;  // of the coordinator: HOST:PORT, port 0: the system's choice
};

// Gives --nnodes the number of hosts where it is not given. A plain look at the options and the
// host file.
absl::Status ApplyHosts(Options* options);

// REQUIRES: options.hosts.
absl::StatusOr<HostsPlan> PlanHosts(const Options& options, const Surroundings& here);

// The coordinator's side: it is here, and no node. The secret is the caller's (DDPRUN_SECRET…), or
// a random one.
absl::StatusOr<ClusterPlan> ClusterOf(const HostsPlan& plan, const Options& options,
                                      const Surroundings& here);
// A random secret for one job: 64 hexadecimal digits.
std::string NewSecret();

// "hosts a, b (here), c: …", for people.
std::string HostsLine(const HostsPlan& plan, int port);
// A line for each host, for --dry-run.
std::string HostsText(const HostsPlan& plan, const Options& options);
// " --hosts … --ssh …", as it was typed, for a command to type again.
std::string HostsOptions(const Options& options);

// What the agents are started with, once the coordinator listens on `port`. `secret` is the job's.
RemoteAgentsOptions AgentsOf(const HostsPlan& plan, const Options& options,
                             const Surroundings& here, const std::string& job_id,
                             const std::string& secret, int port);

}  // namespace ddprun::cli
