// What a coordinator and its agents use to know each other: the job's secret, and TLS.
//
// Plain values, read once at the start (secret.h, credentials.h) and handed to both sides. Never
// printed, never in a JobSpec, a worker's environment or a file but the one it came from.
#pragma once

#include <string>

namespace ddprun::net {

struct Security {
  std::string secret;           // "": none; then only loopback and a single node are served
  std::string tls_certificate;  // PEM of this side's certificate chain; "": plain text (server)
  std::string tls_key;          // PEM of its key
  // PEM of the authority that the other side's certificate must come from. A server that has one
  // asks every client for a certificate (mutual TLS); a client that has one uses TLS.
  std::string tls_authority;

  bool TlsServer() const { return !tls_certificate.empty(); }
  bool TlsClient() const { return !tls_authority.empty(); }
};

}  // namespace ddprun::net
