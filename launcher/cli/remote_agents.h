// RemoteAgents: the agents of `ddprun --hosts`: one on each host, started by ssh (on this machine
// as a child), started again when it is lost, and ended with the job.
//
// The secret travels as the first line of an agent's standard input, which stays open as long as
// this process lives: its end ends the agent and its workers (tether.h). Output of workers passes
// through to the console; what ssh and agents say goes to standard error behind the host's name,
// bounded.
//
// A host whose first start fails counts as missing, and `on_too_few` is called once when those that
// are left are fewer than needed. One that had come is tried again for as long as the job runs,
// with a pause of 5 s that doubles up to 60 s.
//
// Threads: one of its own does everything, and calls on_too_few; methods from any thread. The ssh
// processes are killed when that thread ends, however the process dies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/cli/hosts.h"
#include "launcher/cli/remote_start.h"
#include "launcher/console/console.h"

namespace ddprun::cli {

// One host, and what its agent is told.
struct RemoteHost {
  HostEntry entry;
  bool here = false;                   // this machine
  std::vector<std::string> arguments;  // of ddprun: agent --tether …
};

struct RemoteAgentsOptions {
  std::vector<RemoteHost> hosts;
  RemotePlace place;
  std::string secret;
  std::vector<std::string> environment;  // NAME=VALUE, of ssh and of an agent here
  size_t hosts_needed = 1;
  Console* console = nullptr;  // outlives the agents
  // `reason`: which hosts failed.
  std::function<void(const std::string& reason)> on_too_few;
};

class RemoteAgents {
 public:
  explicit RemoteAgents(RemoteAgentsOptions options);
  // As End.
  ~RemoteAgents();

  // The job is over: agents that end are expected, none is started any more.
  void JobIsOver();
  // Waits until every agent has ended; those that do not are ended after a bounded time.
  void End();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::cli
