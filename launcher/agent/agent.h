// Agent: carries out a coordinator's orders on this node. The shell around the agent's core
// (core.h): one loop thread owns the state and waits on keepers, the coordinator's stream and
// deadlines; it spawns one keeper per generation.
//
// The process becomes a child subreaper, so that nothing escapes when a keeper is killed; whoever
// embeds an Agent must not have other children. Threads: all methods from any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/agent/core.h"
#include "launcher/console/console.h"
#include "launcher/net/security.h"
#include "launcher/placement/machine.h"

namespace ddprun::agent {

struct AgentOptions {
  // node, slots, job_id, address, node_rank_wanted, version; the rest is filled in: boot_id,
  // incarnation, card, versions of the trainer's libraries, port
  Identity identity;
  std::shared_ptr<grpc::Channel> channel;
  bool over_network = false;  // the channel is no in-process one
  // HOST:PORT behind the channel: to find out why a connection fails; "" in-process.
  std::string coordinator;
  net::Security security;
  // How long to try for the first Welcome; afterwards an agent without its coordinator ends after
  // a minute.
  double join_timeout_seconds = 600;
  // The workers' environment before the launcher's own variables, where it is this node's own (the
  // same command on each node); otherwise the job's.
  std::optional<std::map<std::string, std::string>> environment;
  // The workers may be on several nodes: a port is held for MASTER_PORT from the start.
  bool several_nodes = false;
  std::vector<std::string> gpus;  // this node's own choice, as JobSpec.gpus; empty: the job's
  std::string keeper_path;        // ddprun-keeper
  std::string worker_path;        // ddp-worker, for jobs of the built-in trainer
  Console* console = nullptr;     // outlives the agent
  placement::Machine machine;     // what the workers share
};

struct AgentEnd {
  // The job's where it is over; 2: refused, 3: no coordinator came in time, 1: it was lost.
  int exit_code = 0;
  std::string reason;  // one line
  bool left = false;   // as it was asked to (Leave), and not with the job's end
  bool job_over = false;
  bool never_joined = false;  // no coordinator has welcomed it
};

class Agent {
 public:
  static absl::StatusOr<std::unique_ptr<Agent>> Start(AgentOptions options);
  // Ends the workers (KILL) if any live, and waits for the loop.
  ~Agent();

  // Blocks until the agent has nothing more to do.
  AgentEnd WaitForEnd();
  // The same; *reason may be null.
  int WaitForEnd(std::string* reason);
  // Leaves the job, which goes on without this node. `planned`: the coordinator makes a checkpoint
  // first, stops the workers and releases this node; else, and at a second call, they are killed at
  // once. The end of the job goes before. Returns at once; WaitForEnd waits.
  void Leave(const std::string& reason, bool planned = false);

 private:
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A name for this node that is unique among machines: the host name without its domain.
std::string DefaultNodeName();

}  // namespace ddprun::agent
