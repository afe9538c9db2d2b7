// Addresses: taking HOST:PORT apart, what a name resolves to, which network cards this machine has,
// and which of its addresses the other nodes should use.
//
// Addresses are numeric texts without brackets ("10.0.0.1", "fd00::1", "fe80::1%eth0"). Nothing
// here asks for a name of an address (no reverse look-ups). Threads: any; Resolve blocks as long as
// the system's resolver does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddprun::net {

struct Endpoint {
  std::string host;   // without brackets
  uint16_t port = 0;  // 0: none, or the system's choice
};
// HOST:PORT, [IPv6]:PORT, HOST, [IPv6]. What was checked before (cli/values.h) never fails.
Endpoint SplitEndpoint(const std::string& text);
// "host:port", "[fd00::1]:port".
std::string JoinEndpoint(const std::string& host, uint16_t port);

bool IsNumeric(const std::string& host);
// 127.x, ::1, ::ffff:127.x
bool IsLoopback(const std::string& address);
bool IsLinkLocal(const std::string& address);
// A loopback address, or a name that every machine has for itself (localhost).
bool NamesLoopback(const std::string& host);

struct Resolution {
  std::vector<std::string> addresses;  // in the system's order, none twice
  std::string error;                   // why there are none: "Name or service not known"
};
Resolution Resolve(const std::string& host);

// Whether a socket of this machine can have the address.
bool IsOwn(const std::string& address);
// The local address on the way to another one. UNAVAILABLE: there is no way, with the system's
// reason.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& address);

// An address of a network card.
struct Card {
  std::string name;
  std::string address;
  bool up = false;
  bool loopback = false;
  bool link_local = false;
  bool bridge = false;         // of containers or virtual machines: docker0, virbr0, veth…
  bool default_route = false;  // the way to everywhere else begins here
};
std::vector<Card> Cards();
// The card that has the address; "" for none.
std::string CardOf(const std::vector<Card>& cards, const std::string& address);

// One address out of many, and why. Pure.
struct Choice {
  std::string address;  // "" when none will do
  std::string card;
  // "eth0   10.0.0.1   chosen: …" for each, where there was something to choose from; else empty.
  std::vector<std::string> table;
};
// By the default route; IPv4 before IPv6. `wanted_card` ("": any) is --iface.
Choice ChooseAddress(const std::vector<Card>& cards, const std::string& wanted_card);
// The table where the route to the coordinator has chosen `address`.
Choice ChosenByRoute(const std::vector<Card>& cards, const std::string& address,
                     const std::string& towards);

// Whether a socket can listen on the port in all families. OK; ALREADY_EXISTS: taken; other codes:
// the system's reason.
absl::Status CheckPortIsFree(uint16_t port, const std::string& address);
// "[::]" where the machine has IPv6, else "0.0.0.0".
std::string AnyAddress();

}  // namespace ddprun::net
