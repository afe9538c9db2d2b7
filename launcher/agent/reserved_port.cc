#include "launcher/agent/reserved_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ddprun::agent {

absl::Status ReservedPort::Reserve(const std::string& address, uint32_t wished) {
  const bool six = address.find(':') != std::string::npos;
  const int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "socket for MASTER_PORT");
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 any6 = {};
  any6.sin6_family = AF_INET6;
  sockaddr_in any4 = {};
  any4.sin_family = AF_INET;
  any6.sin6_port = any4.sin_port = htons(static_cast<uint16_t>(wished));
  sockaddr* any = six ? reinterpret_cast<sockaddr*>(&any6) : reinterpret_cast<sockaddr*>(&any4);
  socklen_t size = six ? sizeof any6 : sizeof any4;
  if (bind(fd, any, size) != 0 || getsockname(fd, any, &size) != 0) {
    const int error = errno;
    close(fd);
    if (wished != 0) {
      return absl::UnavailableError(absl::StrCat(
          "--master-port ", wished, ": cannot be had for MASTER_PORT: ", strerrordesc_np(error),
          "; leave it away, and a free port is chosen"));
    }
    return absl::ErrnoToStatus(error, "bind of a port for MASTER_PORT");
  }
  Release();
  fd_ = fd;
  port_ = ntohs(six ? any6.sin6_port : any4.sin_port);
  return absl::OkStatus();
}

void ReservedPort::Release() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  port_ = 0;
}

}  // namespace ddprun::agent
