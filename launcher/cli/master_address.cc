#include "launcher/cli/master_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace ddprun::cli {
namespace {

// 0, or why a socket cannot be bound there. With SO_REUSEADDR, as workers bind: what an ended job
// has left of its connections does not matter.
int BindError(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int error = bind(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

absl::Status CheckMasterAddress(const v1::Launching& launching) {
  if (launching.master_address().empty() && launching.master_port() == 0) return absl::OkStatus();
  const std::string host =
      launching.master_address().empty() ? std::string("127.0.0.1") : launching.master_address();
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* results = nullptr;
  const std::string port = absl::StrCat(launching.master_port());
  const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &results);
  if (failed != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--master-addr ", host, ": has no address: ", gai_strerror(failed),
                     "; leave it away, and that of this machine is used"));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(results, freeaddrinfo);
  int error = 0;
  for (const addrinfo* entry = results; entry != nullptr; entry = entry->ai_next) {
    error = BindError(*entry);
    if (error == 0) return absl::OkStatus();
    if (error == EADDRINUSE) break;
  }
  if (error == EADDRNOTAVAIL) {
    return absl::InvalidArgumentError(
        absl::StrCat("--master-addr ", host,
                     ": is not an address of this machine, where rank 0 runs; leave it away, or "
                     "for several nodes see ddprun coordinator"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--master-port ", port, ": cannot be had for MASTER_PORT: ", strerrordesc_np(error),
      "; leave it away, and a free port is chosen"));
}

}  // namespace ddprun::cli
