// ReservedPort: a TCP port for MASTER_PORT that nobody else can take meanwhile.
//
// It stays bound with SO_REUSEADDR and never listens: a worker that binds it with SO_REUSEADDR (as
// PyTorch's TCPStore does) succeeds, one without does not. Belongs to one thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace ddprun::agent {

class ReservedPort {
 public:
  ReservedPort() = default;
  ~ReservedPort() { Release(); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  // A fresh port on all addresses of the family of `address` (numeric, or a name: then IPv4).
  absl::Status Reserve(const std::string& address);
  void Release();
  uint32_t port() const { return port_; }

 private:
  int fd_ = -1;
  uint32_t port_ = 0;
};

}  // namespace ddprun::agent
