// Network cards, and the choice of an address among theirs.
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/net/address.h"

namespace ddprun::net {
namespace {

// Cards that a default route begins at, as the kernel tells it.
std::set<std::string> DefaultRouteCards() {
  std::set<std::string> cards;
  std::string line;
  std::ifstream four("/proc/net/route");
  std::getline(four, line);  // heading
  while (std::getline(four, line)) {
    std::istringstream words(line);
    std::string card, target, gateway, flags, unused, mask;
    words >> card >> target >> gateway >> flags >> unused >> unused >> unused >> mask;
    if (target == "00000000" && mask == "00000000") cards.insert(card);
  }
  std::ifstream six("/proc/net/ipv6_route");
  while (std::getline(six, line)) {
    std::istringstream words(line);
    std::string target, bits, unused, card;
    words >> target >> bits;
    for (int i = 0; i < 8; ++i) words >> (i == 7 ? card : unused);
    const bool any = bits == "00" && target.find_first_not_of('0') == std::string::npos;
    if (any && card != "lo") cards.insert(card);
  }
  return cards;
}

bool IsBridge(const std::string& card) {
  for (const char* prefix : {"docker", "virbr", "veth", "br-", "cni", "flannel", "lxc", "podman"}) {
    if (absl::StartsWith(card, prefix)) return true;
  }
  struct stat info = {};
  return stat(absl::StrCat("/sys/class/net/", card, "/bridge").c_str(), &info) == 0;
}

// Smaller is better.
int Rank(const Card& card) {
  return (card.default_route ? 0 : 4) + (card.bridge ? 2 : 0) +
         (absl::StrContains(card.address, ':') ? 1 : 0);
}

std::string WhyNot(const Card& card, const std::string& wanted_card) {
  if (!wanted_card.empty() && card.name != wanted_card) return "not --iface";
  if (!card.up) return "is down";
  if (card.loopback) return "only this machine reaches it";
  if (card.link_local) return "link-local";
  if (card.bridge) return "of containers or virtual machines";
  if (!card.default_route) return "no default route";
  return "";
}

// Whether there was a choice: cards, not addresses of one card.
bool SeveralCards(const std::vector<Card>& cards) {
  std::set<std::string> names;
  for (const Card& card : cards) {
    if (card.up && !card.loopback && !card.link_local) names.insert(card.name);
  }
  return names.size() > 1;
}

std::string Row(const Card& card, const std::string& remark) {
  return absl::StrCat("  ", card.name, "  ", card.address, "  ", remark);
}

}  // namespace

std::vector<Card> Cards() {
  std::vector<Card> cards;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return cards;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  const std::set<std::string> default_route = DefaultRouteCards();
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::array<char, NI_MAXHOST> text = {};
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(entry->ifa_addr, bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) !=
        0) {
      continue;
    }
    Card card;
    card.name = entry->ifa_name;
    card.address = text.data();
    card.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    card.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0 || IsLoopback(card.address);
    card.link_local = IsLinkLocal(card.address);
    card.bridge = IsBridge(card.name);
    card.default_route = default_route.contains(card.name);
    cards.push_back(std::move(card));
  }
  return cards;
}

std::string CardOf(const std::vector<Card>& cards, const std::string& address) {
  for (const Card& card : cards) {
    if (card.address == address) return card.name;
  }
  return "";
}

Choice ChooseAddress(const std::vector<Card>& cards, const std::string& wanted_card) {
  const auto usable = [&](const Card& card) {
    const bool wanted = !wanted_card.empty() && card.name == wanted_card;
    return card.up && !card.link_local && (wanted || (wanted_card.empty() && !card.loopback));
  };
  const Card* best = nullptr;
  for (const Card& card : cards) {
    if (usable(card) && (best == nullptr || Rank(card) < Rank(*best))) best = &card;
  }
  Choice choice;
  if (best != nullptr) {
    choice.address = best->address;
    choice.card = best->name;
  }
  if (best != nullptr && !SeveralCards(cards)) return choice;
  for (const Card& card : cards) {
    if (best == &card) {
      choice.table.push_back(
          Row(card, absl::StrCat("chosen: ", !wanted_card.empty() ? "--iface"
                                             : card.default_route ? "default route"
                                                                  : "first that will do")));
      continue;
    }
    std::string why = WhyNot(card, wanted_card);
    if (why.empty()) why = "one is enough";
    choice.table.push_back(Row(card, why));
  }
  return choice;
}

Choice ChosenByRoute(const std::vector<Card>& cards, const std::string& address,
                     const std::string& towards) {
  Choice choice;
  choice.address = address;
  choice.card = CardOf(cards, address);
  if (!SeveralCards(cards)) return choice;
  for (const Card& card : cards) {
    const std::string remark = card.address == address
                                   ? absl::StrCat("chosen: the way to ", towards)
                               : card.loopback ? "only this machine reaches it"
                                               : absl::StrCat("not the way to ", towards);
    choice.table.push_back(Row(card, remark));
  }
  return choice;
}

}  // namespace ddprun::net
