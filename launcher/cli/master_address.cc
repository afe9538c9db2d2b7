#include "launcher/cli/master_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace ddprun::cli {
namespace {

// 0, or why a socket cannot be bound there. With SO_REUSEADDR, as workers bind: what an ended job
// has left of its connections does not matter.
int BindError(int family, const sockaddr* address, socklen_t bytes) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int error = bind(fd, address, bytes) == 0 ? 0 : errno;
  close(fd);
  return error;
}

// Rank 0 listens on all addresses, as a rule.
int PortError(int family, uint32_t port) {
  sockaddr_in6 any6 = {};
  any6.sin6_family = AF_INET6;
  sockaddr_in any4 = {};
  any4.sin_family = AF_INET;
  any6.sin6_port = any4.sin_port = htons(static_cast<uint16_t>(port));
  return family == AF_INET6 ? BindError(family, reinterpret_cast<sockaddr*>(&any6), sizeof any6)
                            : BindError(family, reinterpret_cast<sockaddr*>(&any4), sizeof any4);
}

}  // namespace

std::string LoopbackAddress() {
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (BindError(AF_INET, reinterpret_cast<sockaddr*>(&four), sizeof four) == 0) return "127.0.0.1";
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_loopback;
  return BindError(AF_INET6, reinterpret_cast<sockaddr*>(&six), sizeof six) == 0 ? "::1"
                                                                                 : "127.0.0.1";
}

absl::Status CheckMasterAddress(const v1::Launching& launching, const std::string& option) {
  if (launching.master_address().empty() && launching.master_port() == 0) return absl::OkStatus();
  const std::string host =
      launching.master_address().empty() ? LoopbackAddress() : launching.master_address();
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* results = nullptr;
  const int failed = getaddrinfo(host.c_str(), "0", &hints, &results);
  if (failed != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " ", host, ": has no address: ", gai_strerror(failed),
                     "; leave it away, and that of this machine is used"));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(results, freeaddrinfo);
  const addrinfo* own = results;
  while (own != nullptr && BindError(own->ai_family, own->ai_addr, own->ai_addrlen) != 0) {
    own = own->ai_next;
  }
  if (own == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " ", host,
                     ": is not an address of this machine, where rank 0 runs; leave it away, or "
                     "for several nodes see ddprun coordinator"));
  }
  // The agent holds it in the family of a numeric address, and in IPv4 for a name.
  const int family = host.find(':') != std::string::npos ? AF_INET6 : AF_INET;
  const int error = launching.master_port() == 0 ? 0 : PortError(family, launching.master_port());
  if (error == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      option == "--rdzv-endpoint" ? "--rdzv-endpoint: port" : "--master-port", " ",
      launching.master_port(), ": cannot be had for MASTER_PORT: ", strerrordesc_np(error),
      "; leave it away, and a free port is chosen"));
}

}  // namespace ddprun::cli
