#include "launcher/net/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ddprun::net {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// A numeric address as the system has it; null for anything else.
AddressList Numeric(const std::string& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* result = nullptr;
  if (getaddrinfo(address.c_str(), nullptr, &hints, &result) != 0) result = nullptr;
  return {result, freeaddrinfo};
}

std::string TextOf(const sockaddr* address, socklen_t bytes) {
  std::array<char, NI_MAXHOST> text = {};
  const bool ok =
      getnameinfo(address, bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  return ok ? text.data() : "";
}

void SetPort(sockaddr* address, uint16_t port) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(port);
  }
}

}  // namespace

Endpoint SplitEndpoint(const std::string& text) {
  Endpoint endpoint;
  std::string host = text;
  const size_t colon = text.rfind(':');
  const bool several = std::count(text.begin(), text.end(), ':') > 1 && text.front() != '[';
  if (colon != std::string::npos && text.back() != ']' && !several) {
    host = text.substr(0, colon);
    uint32_t port = 0;
    if (absl::SimpleAtoi(text.substr(colon + 1), &port) && port <= UINT16_MAX) {
      endpoint.port = static_cast<uint16_t>(port);
    }
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  endpoint.host = host;
  return endpoint;
}

std::string JoinEndpoint(const std::string& host, uint16_t port) {
  const bool six = absl::StrContains(host, ':');
  return six ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool IsNumeric(const std::string& host) {
  return Numeric(host) != nullptr;
}

bool IsLoopback(const std::string& address) {
  const AddressList list = Numeric(address);
  if (list == nullptr) return false;
  if (list->ai_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(list->ai_addr);
    return (ntohl(four->sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  }
  const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(list->ai_addr)->sin6_addr;
  if (IN6_IS_ADDR_LOOPBACK(&six)) return true;
  return IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == IN_LOOPBACKNET;
}

bool IsLinkLocal(const std::string& address) {
  const AddressList list = Numeric(address);
  if (list == nullptr) return false;
  if (list->ai_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(list->ai_addr);
    return (ntohl(four->sin_addr.s_addr) >> 16) == 0xA9FE;  // 169.254
  }
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(list->ai_addr)->sin6_addr);
}

bool NamesLoopback(const std::string& host) {
  return IsLoopback(host) || host == "localhost" || absl::StartsWith(host, "localhost.") ||
         absl::EndsWith(host, ".localhost") || host == "ip6-localhost" || host == "ip6-loopback";
}

Resolution Resolve(const std::string& host) {
  Resolution resolution;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* results = nullptr;
  const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &results);
  if (failed != 0) {
    resolution.error = failed == EAI_SYSTEM ? strerrordesc_np(errno) : gai_strerror(failed);
    return resolution;
  }
  const AddressList owner(results, freeaddrinfo);
  for (const addrinfo* entry = results; entry != nullptr; entry = entry->ai_next) {
    const std::string text = TextOf(entry->ai_addr, entry->ai_addrlen);
    auto& list = resolution.addresses;
    if (!text.empty() && std::find(list.begin(), list.end(), text) == list.end()) {
      list.push_back(text);
    }
  }
  if (resolution.addresses.empty()) resolution.error = "it has no address";
  return resolution;
}

bool IsOwn(const std::string& address) {
  const AddressList list = Numeric(address);
  if (list == nullptr) return false;
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool own = bind(fd, list->ai_addr, list->ai_addrlen) == 0;
  close(fd);
  // The system binds to the broadcast address of a network, too, but leads no way to it.
  return own && (list->ai_family != AF_INET || LocalAddressTowards(address).ok());
}

// Connecting a datagram socket sends nothing, but chooses the local address.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& address) {
  const AddressList list = Numeric(address);
  if (list == nullptr) return absl::InvalidArgumentError(absl::StrCat(address, " is no address"));
  SetPort(list->ai_addr, 9);  // any but 0 will do
  const int fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(strerrordesc_np(errno));
  const absl::Cleanup closer = [fd] { close(fd); };
  if (connect(fd, list->ai_addr, list->ai_addrlen) != 0) {
    return absl::UnavailableError(strerrordesc_np(errno));
  }
  sockaddr_storage local = {};
  socklen_t bytes = sizeof local;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &bytes) != 0) {
    return absl::UnavailableError(strerrordesc_np(errno));
  }
  return TextOf(reinterpret_cast<sockaddr*>(&local), bytes);
}

std::string AnyAddress() {
  return IsOwn("::") ? "[::]" : "0.0.0.0";
}

absl::Status CheckPortIsFree(uint16_t port, const std::string& address) {
  const AddressList list = Numeric(address);
  if (list == nullptr) return absl::InvalidArgumentError(absl::StrCat(address, " is no address"));
  SetPort(list->ai_addr, port);
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, strerrordesc_np(errno));
  const absl::Cleanup closer = [fd] { close(fd); };
  // What an ended coordinator has left of its connections does not matter; who listens does.
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, list->ai_addr, list->ai_addrlen) == 0 && listen(fd, 1) == 0) {
    return absl::OkStatus();
  }
  if (errno == EADDRINUSE) return absl::AlreadyExistsError(strerrordesc_np(errno));
  return absl::ErrnoToStatus(errno, strerrordesc_np(errno));
}

}  // namespace ddprun::net
