// Connects the ranks of one communicator with each other by TCP, found through the exchange.
//
// Each rank listens on one port of its own, publishes "<address> <port> <token>" and connects to
// every lower rank, which it greets with the token; higher ranks connect to it. N ranks publish N
// values and await N·(N−1)/2. A stranger that connects without the token is dropped. Blocking; one
// thread. No exceptions.
#pragma once

#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"

namespace ddprun {

// Owns a descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { Close(); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// Waits until the descriptor is ready for `events` of poll(2); false at the deadline.
bool WaitReady(int fd, short events, absl::Time deadline);

// For poll(2): rounded up, 0 when it has passed, 12 days at most.
int MillisecondsUntil(absl::Time deadline);

// One connected, non-blocking socket a peer, by rank; that of the rank itself is empty.
// DEADLINE_EXCEEDED names the first rank that did not come.
absl::StatusOr<std::vector<Descriptor>> ConnectPeers(const CommunicatorOptions& options,
                                                     const Exchange& exchange, absl::Time deadline);

}  // namespace ddprun
