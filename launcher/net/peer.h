// Names of the other ends of connections. Pure. Threads: any.
#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/strings/string_view.h"

namespace ddprun::net {

// gRPC's "ipv4:10.0.0.1:4711", "ipv6:%5Bfe80::1%252%5D:4711" as "10.0.0.1:4711",
// "[fe80::1%2]:4711". One that is no address of a network stays what it is.
std::string PeerText(const std::string& grpc_peer);

// The same of a socket's peer; an IPv4 address that came over an IPv6 socket is an IPv4 address.
// `host` (may be null) gets the address without port and scope.
std::string PeerText(const sockaddr_storage& address, std::string* host);

}  // namespace ddprun::net
