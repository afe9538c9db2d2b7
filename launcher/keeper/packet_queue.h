// PacketQueue: packets that wait for a SOCK_SEQPACKET socket that must never block the keeper. In
// order, one write each.
//
// Threads: the keeper's alone. Invariant: a packet is either sent whole or still waits; none is cut
// or reordered.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

namespace ddprun::keeper {

class PacketQueue {
 public:
  enum class Outcome { kOk, kFull, kClosed };

  // At most `bytes_max` wait.
  explicit PacketQueue(size_t bytes_max) : bytes_max_(bytes_max) {}

  // Sends it, or keeps it until Flush. kFull: it was not taken. kClosed: nobody reads the socket
  // any more.
  Outcome Push(int fd, std::string packet);
  // Sends what the socket takes now.
  Outcome Flush(int fd);
  void Clear();

  bool empty() const { return packets_.empty(); }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_max_;
  size_t bytes_ = 0;
  std::deque<std::string> packets_;
};

}  // namespace ddprun::keeper
