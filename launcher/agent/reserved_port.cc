#include "launcher/agent/reserved_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace ddprun::agent {

absl::Status ReservedPort::Reserve(const std::string& address) {
  Release();
  const bool six = address.find(':') != std::string::npos;
  fd_ = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return absl::ErrnoToStatus(errno, "socket for MASTER_PORT");
  const int on = 1;
  setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 any6 = {};
  any6.sin6_family = AF_INET6;
  sockaddr_in any4 = {};
  any4.sin_family = AF_INET;
  sockaddr* any = six ? reinterpret_cast<sockaddr*>(&any6) : reinterpret_cast<sockaddr*>(&any4);
  socklen_t size = six ? sizeof any6 : sizeof any4;
  if (bind(fd_, any, size) != 0 || getsockname(fd_, any, &size) != 0) {
    const int error = errno;
    Release();
    return absl::ErrnoToStatus(error, "bind of a port for MASTER_PORT");
  }
  port_ = ntohs(six ? any6.sin6_port : any4.sin_port);
  return absl::OkStatus();
}

void ReservedPort::Release() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  port_ = 0;
}

}  // namespace ddprun::agent
