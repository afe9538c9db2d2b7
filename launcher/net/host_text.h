// Which texts can name a host that others reach, before any name is looked up.
//
// Both return why not, as the end of a sentence ("is the address of …"), or "". Pure. Threads: any.
#pragma once

#include <string>

namespace ddprun::net {

// A name of DNS, a full IPv4 address or an IPv6 address without brackets. What only inet_aton takes
// for an address (1.2.3, 0x7f000001) is none: machines would disagree about it.
std::string WhyNoHost(const std::string& host);

// A numeric address that is no single machine's: 0.0.0.0, ::, broadcast, multicast, also those
// within ::ffff:0:0/96; and a link-local one of IPv6 that does not say on which card. Names pass.
std::string WhyNobodysAddress(const std::string& address);

}  // namespace ddprun::net
