// One TCP connection as a check between two machines: a listener that shows a token to whoever
// connects, and a client that expects it. The token is random and worth nothing; it tells the
// right listener from whatever else answers at that address.
//
// Listener: its thread ends with it. Connect blocks its caller until the deadline at most.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ddprun::doctor {

class Listener {
 public:
  // On every address of this machine, IPv6 and IPv4, on a port of the system's choice.
  static absl::StatusOr<std::unique_ptr<Listener>> Start();
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  const std::string& token() const { return token_; }

 private:
  struct Loop;
  Listener() = default;
  int port_ = 0;
  std::string token_;
  std::unique_ptr<Loop> loop_;
};

// "" when the token came; else what happened instead: "no answer within 3 s", "connection refused".
std::string TryConnection(const std::string& address, int port, const std::string& token,
                          std::chrono::milliseconds time_max);

}  // namespace ddprun::doctor
