// AgentLink: the keeper's end of the control socket (proto/keeper_protocol.md). Packets go out in
// order and never block.
//
// Threads: the keeper's alone.
// Invariants: at most kAgentQueueBytesMax wait, past that the agent counts as dead; Console packets
// are left out (and counted) while more than kConsoleQueueBytesMax wait. Once disconnected it stays
// so, and what is sent is forgotten.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/keeper/fd.h"
#include "launcher/keeper/packet_queue.h"
#include "launcher/keeper/poller.h"

namespace ddprun::keeper {

inline constexpr size_t kAgentQueueBytesMax = size_t{64} << 20;
inline constexpr size_t kConsoleQueueBytesMax = size_t{256} << 10;

class AgentLink {
 public:
  enum class Received { kPacket, kEmpty, kClosed };

  // REQUIRES: *poller is open and outlives this; the socket is watched by it from here on.
  AgentLink(Fd socket, Poller* poller);

  void Send(std::string packet);
  // Whether so much output of a worker may be sent now; else it is left out.
  bool TakesConsole(size_t bytes) const {
    return connected() && queue_.bytes() + bytes <= kConsoleQueueBytesMax;
  }
  // Output of a worker, or a line of the keeper's own. *dropped counts its bytes that were left out
  // since the last Console packet of that rank; they are told. Taken even when the queue is long.
  void SendConsoleAlways(int64_t rank, std::string_view text, uint64_t* dropped);
  void Flush();
  // *packet points into a buffer of its own until the next call.
  Received Receive(std::string_view* packet);
  // Waits until everything is sent, the agent is gone or the time is over.
  void FlushBefore(int64_t deadline_boot_ns);

  bool connected() const { return socket_.valid(); }
  bool wants_write() const { return !queue_.empty(); }
  int fd() const { return socket_.get(); }

 private:
  void Disconnect();

  Fd socket_;
  Poller* poller_;
  PacketQueue queue_{kAgentQueueBytesMax};
};

}  // namespace ddprun::keeper
