#include "launcher/cli/doctor_network.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "launcher/net/address.h"
#include "launcher/net/text.h"

namespace ddprun::doctor {
namespace {

constexpr std::array<int, 2> kUsualPorts = {29400, 29500};  // torchrun's, and ours
constexpr long long kEphemeralPortsMin = 4096;
constexpr double kSlowLookupSeconds = 1;
constexpr double kLooseClockSeconds = 1;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList Numeric(const std::string& address, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string service = std::to_string(port);
  if (getaddrinfo(address.c_str(), service.c_str(), &hints, &list) != 0) list = nullptr;
  return {list, freeaddrinfo};
}

std::string ListenError(const std::string& address, int port) {
  std::string error;
  const int fd = ListenOn(address, &port, &error);
  if (fd >= 0) close(fd);
  return error;
}

}  // namespace

int ListenOn(const std::string& address, int* port, std::string* error) {
  const AddressList list = Numeric(address, *port);
  if (list == nullptr) {
    *error = "is no address";
    return -1;
  }
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  const int off = 0;
  if (fd >= 0 && list->ai_family == AF_INET6) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, 16) != 0) {
    *error = strerror(errno);
    if (fd >= 0) close(fd);
    return -1;
  }
  sockaddr_storage bound = {};
  socklen_t bytes = sizeof bound;
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &bytes);
  *port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return fd;
}

std::string AdvertisedAddress(const World& world) {
  if (!world.advertise_address.empty()) {
    const net::Resolution found = net::Resolve(world.advertise_address);
    return found.addresses.empty() ? world.advertise_address : found.addresses[0];
  }
  return net::ChooseAddress(net::Cards(), world.card).address;
}

std::vector<Finding> JudgePorts(const Ports& ports) {
  std::vector<std::string> good;
  std::vector<Finding> findings;
  for (const Listening& one : ports.listening) {
    if (one.error.empty()) {
      good.push_back(one.address);
      continue;
    }
    // A machine without IPv6 is no trouble.
    if (one.address == "::1") continue;
    findings.push_back(Problem(
        "ports", absl::StrCat("cannot listen on ", one.address, ": ", one.error),
        one.address == "127.0.0.1" ? "workers of this machine cannot find each other"
                                   : "other nodes cannot reach the workers of this one",
        one.address == "127.0.0.1" ? "ip link set lo up"
                                   : "ip addr; choose another with --advertise-addr or --iface"));
  }
  if (findings.empty()) {
    findings.push_back(Ok("ports", absl::StrCat("can listen on ", absl::StrJoin(good, ", "))));
  }
  if (!ports.taken.empty()) {
    findings.push_back(Note("usual ports",
                            absl::StrCat(absl::StrJoin(ports.taken, ", "), " in use"),
                            "another job or coordinator is there",
                            "ss -ltnp shows whose; choose another port in --coordinator"));
  }
  const long long count = ports.range_last - ports.range_first + 1;
  const std::string range = absl::StrCat(ports.range_first, " to ", ports.range_last);
  if (ports.range_first > 0 && count < kEphemeralPortsMin) {
    findings.push_back(Problem(
        "port range", range, absl::StrCat("only ", count, " ports for connections of all programs"),
        "sysctl net.ipv4.ip_local_port_range='32768 60999'"));
  }
  for (const int port : kUsualPorts) {
    if (port < ports.range_first || port > ports.range_last) continue;
    findings.push_back(Note(
        "port range", range, absl::StrCat("the kernel may hand out ", port, " to any program"),
        absl::StrCat("sysctl net.ipv4.ip_local_reserved_ports=", absl::StrJoin(kUsualPorts, ","))));
    break;
  }
  return findings;
}

Outcome CheckPorts(const World& world) {
  Ports ports;
  std::vector<std::string> addresses = {"127.0.0.1", "::1"};
  const std::string own = AdvertisedAddress(world);
  if (!own.empty()) addresses.push_back(own);
  for (const std::string& address : addresses) {
    ports.listening.push_back({address, ListenError(address, 0)});
  }
  for (const int port : kUsualPorts) {
    if (!ListenError("0.0.0.0", port).empty()) ports.taken.push_back(port);
  }
  const std::string range = ReadWorldFile(world, "/proc/sys/net/ipv4/ip_local_port_range");
  ports.range_first = LeadingNumber(range).value_or(0);
  const size_t gap = range.find_last_of(" \t");
  if (gap != std::string::npos) {
    ports.range_last = LeadingNumber(range.substr(gap + 1)).value_or(0);
  }
  return {JudgePorts(ports), {}};
}

Finding JudgeNames(const Names& names) {
  constexpr char kName[] = "names";
  constexpr char kWhom[] =
      "ddprun tells nodes numeric addresses, but programs that look up their own name (Gloo in "
      "Python)";
  const std::string fix =
      absl::StrCat("GLOO_SOCKET_IFNAME=", names.card.empty() ? "eth0" : names.card,
                   ", or a line in /etc/hosts with this machine's real address");
  if (!names.error.empty()) {
    return Note(kName, absl::StrCat(names.own, " has no address: ", names.error),
                absl::StrCat(kWhom, " take loopback, which no other node reaches"), fix);
  }
  const std::string seen = absl::StrCat(names.own, " is ", absl::StrJoin(names.addresses, ", "));
  if (names.seconds > kSlowLookupSeconds) {
    return Note(kName, absl::StrFormat("%s, after %.1f s", seen, names.seconds),
                "a slow name server delays whatever looks up names",
                "the nodes in /etc/hosts, or a nearer server in /etc/resolv.conf");
  }
  if (std::all_of(names.addresses.begin(), names.addresses.end(), net::IsLoopback)) {
    return Note(kName, absl::StrCat(seen, ", loopback alone"),
                absl::StrCat(kWhom,
                             " then tell other nodes an address that only this machine "
                             "reaches"),
                fix);
  }
  return Ok(kName, seen);
}

Outcome CheckNames(const World&) {
  Names names;
  std::array<char, 256> own = {};
  gethostname(own.data(), own.size() - 1);
  names.own = net::Shown(own.data());
  names.card = net::ChooseAddress(net::Cards(), "").card;
  const auto start = std::chrono::steady_clock::now();
  net::Resolution found = net::Resolve(own.data());
  names.addresses = std::move(found.addresses);
  names.error = std::move(found.error);
  names.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {{JudgeNames(names)}, {}};
}

Finding JudgeClock(const ClockState& clock) {
  if (!clock.known) {
    return Note("clock", "the kernel does not tell whether it is synchronised",
                "a node whose clock is off by more than 300 s is refused when it joins",
                "compare with --peers");
  }
  if (!clock.synchronised) {
    return Note("clock", "not synchronised, as the kernel says",
                "a node whose clock is off by more than 300 s is refused when it joins, and logs "
                "of nodes are merged by time (in a container the host may do it all the same)",
                "chrony or systemd-timesyncd on the machine; compare with --peers");
  }
  const std::string seen = absl::StrFormat("synchronised, at most %.3f s off", clock.error_seconds);
  if (clock.error_seconds > kLooseClockSeconds) {
    return Note("clock", seen, "logs of several nodes may be merged in a wrong order",
                "chronyc tracking, or timedatectl timesync-status, says why");
  }
  return Ok("clock", seen);
}

Outcome CheckClock(const World&) {
  timex state = {};  // modes 0: only asks
  const int code = adjtimex(&state);
  ClockState clock;
  clock.known = code >= 0;
  clock.synchronised = code >= 0 && code != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
  clock.error_seconds = static_cast<double>(state.maxerror) * 1e-6;
  return {{JudgeClock(clock)}, {}};
}

Outcome CheckFirewall(const World& world) {
  std::vector<std::string> on;
  if (absl::StrContains(ReadWorldFile(world, "/etc/ufw/ufw.conf"), "ENABLED=yes")) {
    on.emplace_back("ufw");
  }
  if (!ListWorldFolder(world, "/run/firewalld").empty() ||
      !ReadWorldFile(world, "/run/firewalld.pid").empty()) {
    on.emplace_back("firewalld");
  }
  if (on.empty()) {
    return {{Ok("firewall", "neither ufw nor firewalld is on",
                "others are not looked for; --peers tries connections both ways")},
            {}};
  }
  return {{Note("firewall", absl::StrCat(absl::StrJoin(on, " and "), " is on"),
                "workers use ports of the system's choice between all nodes, which must be let "
                "through",
                on[0] == "ufw" ? "ufw allow from NETWORK-OF-THE-NODES; --peers tries it"
                               : "firewall-cmd --zone=trusted --add-source=NETWORK-OF-THE-NODES; "
                                 "--peers tries it")},
          {}};
}

}  // namespace ddprun::doctor
