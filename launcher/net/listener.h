// Listening sockets of one address, for both families where the address has both.
//
// Nobody else can listen there meanwhile: two coordinators on one port would share agents by
// chance. Threads: any.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ddprun::net {

class Listener {
 public:
  // "HOST:PORT", "[IPv6]:PORT", "[::]:PORT" (every address of both families, or of IPv4 alone where
  // there is no IPv6). Port 0: the system chooses one. ALREADY_EXISTS: the port is taken.
  static absl::StatusOr<Listener> Open(const std::string& address);
  Listener(Listener&& other) noexcept { *this = std::move(other); }
  Listener& operator=(Listener&& other) noexcept {
    std::swap(fds_, other.fds_);
    std::swap(port_, other.port_);
    return *this;
  }
  ~Listener();

  const std::vector<int>& fds() const { return fds_; }  // non-blocking
  int port() const { return port_; }

 private:
  Listener() = default;
  std::vector<int> fds_;
  int port_ = 0;
};

}  // namespace ddprun::net
