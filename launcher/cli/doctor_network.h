// Checks of ports, names, the clock and the firewall of this machine. The facts that system calls
// tell are structs; the judgements are pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/cli/doctor_finding.h"
#include "launcher/cli/doctor_world.h"

namespace ddprun::doctor {

struct Listening {
  std::string address;  // numeric
  std::string error;    // "" when a port could be listened on there
};

struct Ports {
  std::vector<Listening> listening;
  long long range_first = 0;  // of the ports that the kernel hands out; 0: not known
  long long range_last = 0;
  std::vector<int> taken;  // of those that jobs like to use, 29400 and 29500
};
std::vector<Finding> JudgePorts(const Ports& ports);
Outcome CheckPorts(const World& world);

struct Names {
  std::string own;                     // host name
  std::string error;                   // "" when it has addresses
  std::vector<std::string> addresses;  // numeric
  double seconds = 0;                  // that the look-up took
  std::string card;                    // that a person would name for GLOO_SOCKET_IFNAME
};
Finding JudgeNames(const Names& names);
Outcome CheckNames(const World& world);

struct ClockState {
  bool known = false;
  bool synchronised = false;
  double error_seconds = 0;  // at most, as the kernel says
};
Finding JudgeClock(const ClockState& clock);
Outcome CheckClock(const World& world);

// Firewalls that are known to be on; nothing is found out about single rules.
Outcome CheckFirewall(const World& world);

// The address that other nodes are told of this machine: --advertise-addr, --iface, or that of the
// card with the default route; "" without one.
std::string AdvertisedAddress(const World& world);
// A socket that listens on a port of the system's choice, or on `port`; -1 and *error.
int ListenOn(const std::string& address, int* port, std::string* error);

}  // namespace ddprun::doctor
