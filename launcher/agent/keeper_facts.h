// Translation between the keeper's packets and the coordinator's messages. Pure but for reading a
// log file's tail.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/packet.h"
#include "ddprun/v1/agent.pb.h"

namespace ddprun::agent {

// What the translation must remember about the workers of one generation.
struct WorkerNotes {
  uint64_t generation = 0;
  uint32_t first_rank = 0;
  std::map<uint32_t, std::string> log_paths;  // by rank
  std::map<uint32_t, int64_t> started_ns;     // CLOCK_REALTIME
  std::set<uint32_t> finished;                // said Finished
  std::set<uint32_t> said_failed;             // said Failed
  // When our order to stop went out, or the keeper killed for want of a lease; 0: not yet. What
  // ends later is no failure of its own.
  int64_t stop_ordered_ns = 0;
  bool lease_expired = false;
};

// The message for the coordinator, if the packet is one that it needs. Progress of ranks other than
// the node's first stays here.
std::optional<v1::AgentMessage> FactOf(const Packet& packet, WorkerNotes& notes);

// The keeper's LeaseExpired: it kills its workers from that moment on.
void NoteLeaseExpired(const Packet& packet, WorkerNotes& notes);

// Where a worker stands, from `Places` or `Stalled`.
v1::WorkerPlace PlaceOf(const Packet& packet);

// It ended as our order to stop makes a process end, and shows no error of its own. (Another end
// after the order may have been under way before.)
bool EndedByOrder(const v1::WorkerExited& exited);

// The worker packet for a coordinator's message; *rank receives the addressee, or -1 for all of the
// node.
std::optional<std::string> WorkerPacketOf(const v1::CoordinatorMessage& message, int64_t* rank);

// The keeper's `Stop` for a coordinator's order.
std::string StopPacketOf(const v1::StopWorkers& order);

// The last bytes of a log, also those of the file before where it was rotated lately.
std::string LogEnd(const std::string& path, size_t bytes_max);
// The last lines of a log: at most 30, of at most 400 bytes each.
std::vector<std::string> LogTail(const std::string& path);

}  // namespace ddprun::agent
