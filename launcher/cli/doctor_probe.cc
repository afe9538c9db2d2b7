#include "launcher/cli/doctor_probe.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/cli/doctor_network.h"

namespace ddprun::doctor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kTokenBytes = 8;
constexpr int kConnectionsMax = 64;  // then nobody is let in any more: a check needs a few

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

// A numeric address as the system's functions take it.
bool ParseNumeric(const std::string& address, int port, sockaddr_storage* parsed,
                  socklen_t* bytes) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return false;
  memcpy(parsed, list->ai_addr, list->ai_addrlen);
  *bytes = list->ai_addrlen;
  freeaddrinfo(list);
  return true;
}

// Reads the token of the other side.
std::string ReadToken(int fd, size_t bytes, Clock::time_point deadline, std::string* error) {
  std::string token;
  while (token.size() < bytes) {
    pollfd polled = {fd, POLLIN, 0};
    if (poll(&polled, 1, MillisecondsUntil(deadline)) == 0) {
      *error = "connected, but nothing came";
      return token;
    }
    std::array<char, 64> buffer;
    const ssize_t got = read(fd, buffer.data(), std::min(buffer.size(), bytes - token.size()));
    if (got <= 0) {
      *error = got == 0 ? "connected, but it was closed at once" : strerror(errno);
      return token;
    }
    token.append(buffer.data(), static_cast<size_t>(got));
  }
  return token;
}

}  // namespace

struct Listener::Loop {
  Loop(int listening_fd, std::string text)
      : fd(listening_fd), stop(eventfd(0, EFD_CLOEXEC)), token(std::move(text)) {
    thread = std::thread([this] { Run(); });
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop() {
    const uint64_t one = 1;
    if (write(stop, &one, sizeof one) != sizeof one) shutdown(fd, SHUT_RDWR);
    thread.join();
    close(fd);
    close(stop);
  }
  void Run() const {
    for (int served = 0; served < kConnectionsMax;) {
      std::array<pollfd, 2> polled = {{{fd, POLLIN, 0}, {stop, POLLIN, 0}}};
      if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
      if (polled[1].revents != 0) return;
      if ((polled[0].revents & POLLIN) == 0) continue;
      const int client = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (client < 0) continue;
      ++served;
      // Fits into an empty socket's buffer.
      (void)!send(client, token.data(), token.size(), MSG_NOSIGNAL);
      close(client);
    }
  }
  int fd;
  int stop;
  std::string token;
  std::thread thread;
};

absl::StatusOr<std::unique_ptr<Listener>> Listener::Start() {
  std::array<char, kTokenBytes> random = {};
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return absl::InternalError("no random bytes");
  }
  std::unique_ptr<Listener> listener(new Listener);
  listener->token_ = absl::BytesToHexString(absl::string_view(random.data(), random.size()));
  std::string error;
  int fd = ListenOn("::", &listener->port_, &error);
  if (fd < 0) fd = ListenOn("0.0.0.0", &listener->port_, &error);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("cannot listen: ", error));
  listener->loop_ = std::make_unique<Loop>(fd, listener->token_);
  return listener;
}

Listener::~Listener() = default;

std::string TryConnection(const std::string& address, int port, const std::string& token,
                          std::chrono::milliseconds time_max) {
  const Clock::time_point deadline = Clock::now() + time_max;
  sockaddr_storage remote = {};
  socklen_t bytes = 0;
  if (!ParseNumeric(address, port, &remote, &bytes)) return "is no address";
  const int fd = socket(remote.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return strerror(errno);
  std::string error;
  if (connect(fd, reinterpret_cast<sockaddr*>(&remote), bytes) != 0 && errno != EINPROGRESS) {
    error = strerror(errno);
  }
  pollfd polled = {fd, POLLOUT, 0};
  if (error.empty() && poll(&polled, 1, MillisecondsUntil(deadline)) == 0) {
    error =
        absl::StrFormat("no answer within %.0f s", std::chrono::duration<double>(time_max).count());
  }
  int code = 0;
  socklen_t code_bytes = sizeof code;
  if (error.empty() && getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &code_bytes) == 0 && code != 0) {
    error = strerror(code);
  }
  if (error.empty() && ReadToken(fd, token.size(), deadline, &error) != token && error.empty()) {
    error = "something else answers there";
  }
  close(fd);
  return error;
}

}  // namespace ddprun::doctor
