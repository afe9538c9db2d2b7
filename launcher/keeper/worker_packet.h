// Is this a packet that a worker may send? Pure; the table of proto/worker_protocol.md, direction
// worker → keeper.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace ddprun::keeper {

struct WorkerPacketCheck {
  bool is_hello = false;
  std::string problem;  // empty: it is good and goes to the agent as it is
};

// `pid` is the worker's; `said_hello`: its Hello has come before. Unknown types are good: a newer
// agent may know them.
WorkerPacketCheck CheckWorkerPacket(std::string_view bytes, pid_t pid, bool said_hello);

}  // namespace ddprun::keeper
