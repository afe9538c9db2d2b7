#include "launcher/net/host_text.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace ddprun::net {
namespace {

constexpr size_t kHostNameBytesMax = 253;  // of a name in DNS
constexpr size_t kLabelBytesMax = 63;

bool IsFour(const std::string& text, in_addr* four) {
  return inet_pton(AF_INET, text.c_str(), four) == 1;
}

// "fe80::1%eth0": the scope is left away.
bool IsSix(const std::string& text, in6_addr* six) {
  return inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), six) == 1;
}

bool IsCardName(absl::string_view name) {
  constexpr size_t kCardNameBytesMax = 15;
  return !name.empty() && name.size() <= kCardNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::string_view("._-@").find(c) != absl::string_view::npos;
         });
}

bool IsLabel(absl::string_view label) {
  return !label.empty() && label.size() <= kLabelBytesMax && label[0] != '-' &&
         std::all_of(label.begin(), label.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
         });
}

// The system's resolver takes a text whose last part is a number for an address.
bool LooksNumeric(absl::string_view label) {
  const bool hex = absl::StartsWith(label, "0x") || absl::StartsWith(label, "0X");
  return std::all_of(label.begin(), label.end(), absl::ascii_isdigit) ||
         (hex && std::all_of(label.begin() + 2, label.end(), absl::ascii_isxdigit));
}

std::string WhyNobodys(uint32_t four) {
  if (four == INADDR_ANY)
    return "stands for every address of a machine, and is none that others reach";
  if (four == INADDR_BROADCAST) return "is the broadcast address, and no machine's";
  if (IN_MULTICAST(four)) return "is a multicast address, and no machine's";
  return "";
}

}  // namespace

std::string WhyNoHost(const std::string& host) {
  in_addr four = {};
  in6_addr six = {};
  if (absl::StrContains(host, ':')) {
    const size_t scope = host.find('%');
    const bool good =
        IsSix(host, &six) && (scope == std::string::npos || IsCardName(host.substr(scope + 1)));
    return good ? "" : "is no IPv6 address";
  }
  if (host.empty() || host.size() > kHostNameBytesMax) {
    return "is no name of a host, which has 1 to 253 characters";
  }
  absl::string_view name = host;
  if (name.size() > 1 && name.back() == '.') name.remove_suffix(1);
  const std::vector<absl::string_view> labels = absl::StrSplit(name, '.');
  if (!std::all_of(labels.begin(), labels.end(), IsLabel)) {
    return "is no name or address of a host: those have letters, digits, hyphens and dots";
  }
  if (LooksNumeric(labels.back()) && !IsFour(host, &four)) {
    return "is no IPv4 address: those have four numbers from 0 to 255, as in 10.0.0.1";
  }
  return "";
}

std::string WhyNobodysAddress(const std::string& address) {
  in_addr four = {};
  if (IsFour(address, &four)) return WhyNobodys(ntohl(four.s_addr));
  in6_addr six = {};
  if (!IsSix(address, &six)) return "";
  if (IN6_IS_ADDR_V4MAPPED(&six)) {
    memcpy(&four, &six.s6_addr[12], sizeof four);
    return WhyNobodys(ntohl(four.s_addr));
  }
  if (IN6_IS_ADDR_UNSPECIFIED(&six)) return WhyNobodys(INADDR_ANY);
  if (IN6_IS_ADDR_MULTICAST(&six)) return "is a multicast address, and no machine's";
  if (IN6_IS_ADDR_LINKLOCAL(&six) && address.find('%') == std::string::npos) {
    return "is link-local and lacks the network card, as in fe80::1%eth0";
  }
  return "";
}

}  // namespace ddprun::net
