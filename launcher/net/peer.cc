#include "launcher/net/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ddprun::net {

std::string PeerText(const std::string& grpc_peer) {
  absl::string_view text = grpc_peer;
  if (absl::StartsWith(text, "ipv4:") || absl::StartsWith(text, "ipv6:")) text.remove_prefix(5);
  std::string decoded;
  while (!text.empty()) {
    int byte = 0;
    if (text[0] == '%' && text.size() >= 3 && absl::SimpleHexAtoi(text.substr(1, 2), &byte)) {
      decoded.push_back(static_cast<char>(byte));
      text.remove_prefix(3);
    } else {
      decoded.push_back(text[0]);
      text.remove_prefix(1);
    }
  }
  return decoded;
}

std::string PeerText(const sockaddr_storage& address, std::string* host) {
  char text[INET6_ADDRSTRLEN] = "";
  std::string own_host;
  std::string& name = host != nullptr ? *host : own_host;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    name = text;
    return absl::StrCat(text, ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return name = "unknown";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof text);
    name = text;
    return absl::StrCat(text, ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  name = text;
  const std::string scope =
      v6.sin6_scope_id != 0 ? absl::StrCat("%", v6.sin6_scope_id) : std::string();
  return absl::StrCat("[", text, scope, "]:", ntohs(v6.sin6_port));
}

}  // namespace ddprun::net
