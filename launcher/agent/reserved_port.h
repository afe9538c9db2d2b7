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

  // A port on all addresses of the family of `address` (numeric, or a name: then IPv4): `wished`,
  // or a fresh one where that is 0, which is never the one that is held already. UNAVAILABLE when
  // the wished one is taken. What was held before is held on in case of an error.
  absl::Status Reserve(const std::string& address, uint32_t wished = 0);
  void Release();
  uint32_t port() const { return port_; }

 private:
  int fd_ = -1;
  uint32_t port_ = 0;
};

}  // namespace ddprun::agent
