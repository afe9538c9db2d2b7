#include "launcher/net/listener.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace ddprun::net {
namespace {

constexpr int kBacklog = 1024;  // agents of a whole cluster come within milliseconds
// A peer that vanished is noticed by the kernel, which wakes nobody.
constexpr int kKeepAliveIdleSeconds = 30;
constexpr int kKeepAliveEverySeconds = 10;
constexpr int kKeepAliveProbes = 3;

uint16_t& PortOf(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

bool IsAny(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// The socket, or -1 with errno. Accepted sockets inherit the options.
int ListenOn(const sockaddr_storage& address, socklen_t bytes) {
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1;
  const int v6_only = IsAny(address) ? 0 : 1;
  const auto set = [fd](int level, int name, int value) {
    return setsockopt(fd, level, name, &value, sizeof value) == 0;
  };
  bool ok = set(SOL_SOCKET, SO_REUSEADDR, on);
  if (address.ss_family == AF_INET6) ok = set(IPPROTO_IPV6, IPV6_V6ONLY, v6_only) && ok;
  set(SOL_SOCKET, SO_KEEPALIVE, on);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveEverySeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
  set(IPPROTO_TCP, TCP_NODELAY, on);
  if (ok && bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) == 0 &&
      listen(fd, kBacklog) == 0) {
    return fd;
  }
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

absl::Status Failed(const std::string& address, int error) {
  if (error == EADDRINUSE) {
    return absl::AlreadyExistsError(absl::StrCat("cannot listen on ", address, ": is it in use? (",
                                                 strerrordesc_np(error),
                                                 "; ss -ltnp shows by whom)"));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address, ": ", strerrordesc_np(error),
                   error == EADDRNOTAVAIL ? ": no network card here has it" : ""));
}

}  // namespace

absl::StatusOr<Listener> Listener::Open(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", address, ": no port"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* results = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), address.c_str() + colon + 1,
                                &hints, &results);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", address, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(results, freeaddrinfo);
  Listener listener;
  int failed = 0;
  for (const addrinfo* entry = results; entry != nullptr; entry = entry->ai_next) {
    sockaddr_storage wanted = {};
    memcpy(&wanted, entry->ai_addr, entry->ai_addrlen);
    if (listener.port_ != 0) PortOf(wanted) = htons(static_cast<uint16_t>(listener.port_));
    socklen_t bytes = entry->ai_addrlen;
    int fd = ListenOn(wanted, bytes);
    if (fd < 0 && IsAny(wanted) && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) {
      sockaddr_storage any = {};
      any.ss_family = AF_INET;
      PortOf(any) = PortOf(wanted);
      bytes = sizeof(sockaddr_in);
      fd = ListenOn(any, bytes);
    }
    if (fd < 0) {
      failed = errno;
      continue;
    }
    listener.fds_.push_back(fd);
    sockaddr_storage local = {};
    socklen_t local_bytes = sizeof local;
    getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_bytes);
    listener.port_ = ntohs(PortOf(local));
  }
  // A name with two addresses of which the second is not to be had here (no IPv6) is served on the
  // first; a port that is taken on one of them is taken.
  if (listener.fds_.empty() || failed == EADDRINUSE) return Failed(address, failed);
  return listener;
}

Listener::~Listener() {
  for (int fd : fds_) close(fd);
}

}  // namespace ddprun::net
