// TLS: files to PEM texts, PEM texts to gRPC's credentials, and the channel to a coordinator.
//
// What is read is checked at once, so that a wrong file is an error of the command line and not of
// the first connection. Threads: any.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "launcher/net/security.h"

namespace ddprun::net {

// --tls-cert, --tls-key, --tls-ca; "" where one is not given. Certificate and key come together and
// fit each other; a key that others can read is refused.
absl::Status ReadTls(const std::string& certificate_path, const std::string& key_path,
                     const std::string& authority_path, Security* security);

// Mutual where an authority is given.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const Security& security);
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const Security& security);

// To "host:port", or gRPC's "ipv4:a:p,b:p"; `name`: what the certificate must be for, where
// `target` does not say it ("": the host of `target`). Tries again at least once a second, uses no
// proxy, and has a connection of its own.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const Security& security,
                                           const std::string& name = "");

// gRPC's own log goes nowhere but into LastTlsProblem; without this it would write to stderr, as
// often as strangers want. Unless GRPC_VERBOSITY or GRPC_TRACE is set. Done by the functions above;
// more than once is fine.
void QuietGrpcLog();
// What the TLS library said last, if not before this moment (CLOCK_MONOTONIC); "" nothing.
std::string LastTlsProblem(int64_t since_ns);

}  // namespace ddprun::net
