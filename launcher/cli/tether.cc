#include "launcher/cli/tether.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

namespace ddprun::cli {
Tether::Tether(int fd, std::function<void()> on_end)
    : fd_(fd), stop_fd_(eventfd(0, EFD_CLOEXEC)), on_end_(std::move(on_end)) {
  thread_ = std::thread([this] { Run(); });
}

Tether::~Tether() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof one);
  thread_.join();
  close(stop_fd_);
}

void Tether::Run() {
  while (true) {
    std::array<pollfd, 2> polled = {{{fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}}};
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[1].revents != 0) return;
    std::array<char, 256> bytes;  // nothing is said here; whatever comes is dropped
    const ssize_t got = read(fd_, bytes.data(), bytes.size());
    if (got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN))) continue;
    return on_end_();
  }
}

}  // namespace ddprun::cli
