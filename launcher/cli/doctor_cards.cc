#include "launcher/cli/doctor_cards.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ddprun::doctor {
namespace {

constexpr long long kSlowCardMbit = 1000;  // below: no card of a cluster
constexpr size_t kCardsShown = 8;

void AddAddress(const sockaddr* address, Card* card) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
    card->ipv4.emplace_back(text.data());
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return;
    inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
    card->ipv6.emplace_back(text.data());
  }
}

// Of the kernel itself: /sys may show another network's cards (a network namespace without a /sys
// of its own).
long long MtuOf(const std::string& name) {
  ifreq request = {};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool told = fd >= 0 && ioctl(fd, SIOCGIFMTU, &request) == 0;
  if (fd >= 0) close(fd);
  return told ? request.ifr_mtu : 0;
}

std::vector<Card> ListCards(const World& world) {
  std::vector<Card> cards;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return cards;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    auto card = std::find_if(cards.begin(), cards.end(),
                             [&](const Card& c) { return c.name == entry->ifa_name; });
    if (card == cards.end()) {
      Card fresh;
      fresh.name = entry->ifa_name;
      fresh.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
      fresh.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
      const std::string folder = absl::StrCat("/sys/class/net/", fresh.name);
      fresh.speed_mbit =
          std::max(0LL, LeadingNumber(ReadWorldFile(world, folder + "/speed")).value_or(0));
      fresh.mtu = MtuOf(fresh.name);
      card = cards.insert(cards.end(), std::move(fresh));
    }
    if (entry->ifa_addr != nullptr) AddAddress(entry->ifa_addr, &*card);
  }
  return cards;
}

std::vector<InfinibandPort> ListPorts(const World& world) {
  std::vector<InfinibandPort> found;
  const std::string root = "/sys/class/infiniband";
  for (const std::string& device : ListWorldFolder(world, root)) {
    const std::string ports = absl::StrCat(root, "/", device, "/ports");
    for (const std::string& number : ListWorldFolder(world, ports)) {
      const std::string folder = absl::StrCat(ports, "/", number);
      InfinibandPort port;
      port.device = device;
      port.link = ReadWorldFile(world, folder + "/link_layer");
      port.rate = ReadWorldFile(world, folder + "/rate");
      port.active = absl::StrContains(ReadWorldFile(world, folder + "/state"), "ACTIVE");
      found.push_back(std::move(port));
    }
  }
  return found;
}

// Of /proc/net/route: the card whose destination is 0.0.0.0.
std::string CardOfDefaultRoute(const World& world) {
  for (const absl::string_view line :
       absl::StrSplit(ReadWorldFile(world, "/proc/net/route"), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, '\t');
    if (words.size() > 7 && words[1] == "00000000" && words[7] == "00000000") return words[0];
  }
  return "";
}

bool Usable(const Card& card) {
  return card.up && !(card.ipv4.empty() && card.ipv6.empty());
}

// NCCL's list of names: "^" turns it into what is left out, "=" asks for whole names instead of
// beginnings.
std::vector<std::string> Matching(const std::vector<Card>& cards, std::string list) {
  const bool left_out = absl::StartsWith(list, "^");
  if (left_out) list.erase(0, 1);
  const bool exact = absl::StartsWith(list, "=");
  if (exact) list.erase(0, 1);
  const std::vector<std::string> names = absl::StrSplit(list, ',', absl::SkipEmpty());
  std::vector<std::string> chosen;
  for (const Card& card : cards) {
    const bool listed = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return exact ? card.name == name : absl::StartsWith(card.name, name);
    });
    if (Usable(card) && listed != left_out) chosen.push_back(card.name);
  }
  return chosen;
}

std::string Described(const Card& card) {
  std::vector<std::string> addresses = card.ipv4;
  addresses.insert(addresses.end(), card.ipv6.begin(), card.ipv6.end());
  if (addresses.size() > 2) addresses.resize(2);
  return absl::StrCat(card.name, " (", absl::StrJoin(addresses, ", "),
                      card.speed_mbit > 0 ? absl::StrCat(", ", card.speed_mbit, " Mb/s") : "",
                      card.mtu > 0 ? absl::StrCat(", MTU ", card.mtu) : "", ")");
}

const Card* FindCard(const Network& network, const std::string& name) {
  for (const Card& card : network.cards) {
    if (card.name == name) return &card;
  }
  return nullptr;
}

Finding JudgeAllCards(const Network& network) {
  std::vector<std::string> shown;
  size_t more = 0;
  for (const Card& card : network.cards) {
    if (card.loopback || !Usable(card)) continue;
    if (shown.size() < kCardsShown) {
      shown.push_back(Described(card));
    } else {
      ++more;
    }
  }
  if (shown.empty()) {
    return Note("network cards", "none that is up and has an address, but loopback",
                "jobs on this machine alone work; no other node can be reached",
                "ip link; ip addr");
  }
  return Ok("network cards", absl::StrCat(absl::StrJoin(shown, ", "),
                                          more > 0 ? absl::StrCat(" and ", more, " more") : ""));
}

Finding JudgeNccl(const Network& network) {
  constexpr char kName[] = "NCCL's cards";
  const std::vector<std::string> chosen = ChooseForNccl(network.cards, network.socket_ifname);
  const bool wished = !network.socket_ifname.empty();
  if (chosen.empty()) {
    return Problem(kName,
                   wished ? absl::StrCat("NCCL_SOCKET_IFNAME=", network.socket_ifname,
                                         " matches no card that is up and has an address")
                          : std::string("none"),
                   "NCCL ends with \"Bootstrap : no socket interface found\"",
                   wished ? "unset it, or name one of those that `ip addr` shows"
                          : "bring a card up, or ip link set lo up for jobs on this machine alone");
  }
  const std::string seen =
      absl::StrCat("sockets over ", absl::StrJoin(chosen, ", "),
                   wished ? absl::StrCat(" (NCCL_SOCKET_IFNAME=", network.socket_ifname, ")") : "");
  const Card* first = FindCard(network, chosen[0]);
  const std::string fix = absl::StrCat(
      "NCCL_SOCKET_IFNAME==", network.default_route.empty() ? "NAME" : network.default_route);
  if (!wished && !network.default_route.empty() && chosen[0] != network.default_route &&
      chosen.size() > 1) {
    return Note(kName, seen,
                absl::StrCat("the default route is over ", network.default_route,
                             ", and NCCL takes what comes first: nodes that choose different "
                             "networks hang at their start"),
                fix);
  }
  if (first != nullptr && first->speed_mbit > 0 && first->speed_mbit < kSlowCardMbit) {
    return Note(kName, seen, absl::StrCat(first->speed_mbit, " Mb/s is slow for gradients"),
                "a faster card, and NCCL_SOCKET_IFNAME==ITS-NAME");
  }
  return Ok(kName, seen, "for its set-up, and for data where there is no InfiniBand");
}

std::vector<Finding> JudgeInfiniband(const Network& network) {
  constexpr char kName[] = "InfiniBand";
  if (network.ports.empty()) return {};
  std::vector<std::string> active;
  std::vector<std::string> down;
  for (const InfinibandPort& port : network.ports) {
    if (port.active) {
      active.push_back(absl::StrCat(port.device, " (", port.link, ", ", port.rate, ")"));
    } else {
      down.push_back(port.device);
    }
  }
  if (network.infiniband_off) {
    return {Note(kName, absl::StrCat(active.size(), " active ports, NCCL_IB_DISABLE=1"),
                 "NCCL uses sockets instead, many times slower", "unset NCCL_IB_DISABLE")};
  }
  if (active.empty()) {
    return {Note(kName, absl::StrCat("no active port: ", absl::StrJoin(down, ", ")),
                 "NCCL uses sockets instead, many times slower", "ibstat; check cable and switch")};
  }
  const std::string seen = absl::StrCat("NCCL uses ", absl::StrJoin(active, ", "));
  if (!down.empty()) {
    return {Note(kName, absl::StrCat(seen, "; down: ", absl::StrJoin(down, ", ")),
                 "a node with fewer cards than the others slows all of them down",
                 "ibstat; check cable and switch, or choose with NCCL_IB_HCA")};
  }
  if (network.has_gpus && !network.peer_memory) {
    return {Note(kName, absl::StrCat(seen, "; nvidia_peermem is not loaded"),
                 "unless driver and kernel use DMA-BUF, data goes through the host's memory",
                 "modprobe nvidia_peermem")};
  }
  return {Ok(kName, seen)};
}

Finding JudgeGloo(const Network& network) {
  constexpr char kName[] = "Gloo's card";
  if (network.gloo_ifname.empty()) {
    return Ok(kName, "the built-in trainer: the card of the route to the coordinator",
              "Python programs: the address that this machine's own name has, see names");
  }
  for (const absl::string_view name : absl::StrSplit(network.gloo_ifname, ',')) {
    const Card* card = FindCard(network, std::string(name));
    if (card != nullptr && Usable(*card)) continue;
    return Problem(kName,
                   absl::StrCat("GLOO_SOCKET_IFNAME=", network.gloo_ifname, ": ", std::string(name),
                                " is no card that is up and has an address"),
                   "programs with the gloo backend end with \"Unable to find address for\"",
                   "unset it, or name one of those that `ip addr` shows");
  }
  return Ok(kName, absl::StrCat("GLOO_SOCKET_IFNAME=", network.gloo_ifname));
}

}  // namespace

std::vector<std::string> ChooseForNccl(const std::vector<Card>& cards,
                                       const std::string& variable) {
  if (variable.size() > 1) return Matching(cards, variable);
  for (const char* list : {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"}) {
    std::vector<std::string> chosen = Matching(cards, list);
    if (!chosen.empty()) return chosen;
  }
  return {};
}

Network LookAtCards(const World& world) {
  Network network;
  network.cards = ListCards(world);
  network.ports = ListPorts(world);
  network.peer_memory = !ListWorldFolder(world, "/sys/module/nvidia_peermem").empty();
  network.has_gpus = !ListWorldFolder(world, "/proc/driver/nvidia/gpus").empty();
  network.default_route = CardOfDefaultRoute(world);
  network.socket_ifname = world.Variable("NCCL_SOCKET_IFNAME");
  network.gloo_ifname = world.Variable("GLOO_SOCKET_IFNAME");
  network.infiniband_off = world.Variable("NCCL_IB_DISABLE") == "1";
  return network;
}

std::vector<Finding> JudgeCards(const Network& network) {
  std::vector<Finding> findings = {JudgeAllCards(network), JudgeNccl(network)};
  for (Finding& finding : JudgeInfiniband(network)) findings.push_back(std::move(finding));
  findings.push_back(JudgeGloo(network));
  return findings;
}

Outcome CheckCards(const World& world) {
  const Network network = LookAtCards(world);
  Outcome outcome{JudgeCards(network), {}};
  const Card* card = FindCard(network, network.default_route);
  if (card != nullptr) outcome.facts["mtu"] = absl::StrCat(card->mtu);
  return outcome;
}

}  // namespace ddprun::doctor
