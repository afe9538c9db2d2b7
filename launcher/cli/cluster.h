// Who this process is among the nodes of a job: alone, the host of the coordinator (and a node
// too), or a member that joins it; and where they meet.
//
// The same command is typed on each node, so this is decided from what the machine is: the node
// that owns the coordinator's address and gets its port is the host. Slurm (slurm.h) and ssh
// (remote_agents.h) fill in the same plan in their own way.
//
// PlanCluster looks at names, network cards and the port, and may wait (at most the join timeout)
// for a name that does not resolve yet; it makes no file and listens nowhere. Errors are of two
// kinds: what the caller can mend by typing something else (exit code 2), and DEADLINE_EXCEEDED
// (exit code 3, nothing came in time).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/options.h"
#include "launcher/cli/preflight.h"
#include "launcher/net/security.h"

namespace ddprun::cli {

enum class Role { kAlone, kHost, kMember };

struct ClusterPlan {
  Role role = Role::kAlone;
  bool runs_agent = true;      // host: this machine is a node too (not with --hosts)
  uint32_t slots = 0;          // workers that this node offers; 0: as the job says
  std::string endpoint;        // HOST:PORT where members reach the coordinator
  std::string listen_address;  // host: HOST:PORT that the coordinator listens on; port 0: chosen
  // Where the other nodes reach this one: numeric, and the network card that has it ("": unknown).
  std::string address;
  std::string card;
  std::string node;        // name of this node
  int32_t node_rank = -1;  // wished place; -1: none
  std::string job_id;      // member: the job it wants to join; "": any
  net::Security security;
  std::vector<std::string> expected_nodes;  // host: names, where they are known beforehand
  double join_timeout_seconds = 600;        // what is left of it
  std::vector<std::string> notes;           // what a person should know, one line each
  // Host: called once the coordinator listens, with its port, before any node can be missed
  // (Slurm writes the rendezvous file, --hosts starts the agents). May be empty.
  std::function<absl::Status(int port)> on_listening;
  // Host: called instead where nothing is started (the run is done already, or cannot begin), so
  // that the others do not wait. May be empty.
  std::function<void(int exit_code)> on_not_started;
  // Held until the end of the process: keeps a second ddprun on this machine from hosting too.
  std::shared_ptr<void> port_lock;
};

// The job's secret and TLS files; a secret is taken out of the surroundings' variables by
// LookAround. INVALID_ARGUMENT names the variable, option or file.
absl::StatusOr<net::Security> ReadSecurity(const Options& options, const Surroundings& here);

// How to wait: `say` shows a line; `pause` waits so many seconds, false when a signal ends the
// waiting.
struct ClusterWait {
  std::function<void(const std::string&)> say;
  std::function<bool(double seconds)> pause;
};

absl::StatusOr<ClusterPlan> PlanCluster(const Options& options, const Surroundings& here,
                                        const ClusterWait& wait);

}  // namespace ddprun::cli
