#include "launcher/cli/tether.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

#include "launcher/net/secret.h"

namespace ddprun::cli {
namespace {

// It is written before the agent has started.
constexpr std::chrono::seconds kSecretPatience{30};

}  // namespace

absl::StatusOr<std::string> ReadSecretLine(int fd) {
  const auto deadline = std::chrono::steady_clock::now() + kSecretPatience;
  std::string line;
  while (line.size() <= net::kSecretBytesMax) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd polled = {fd, POLLIN, 0};
    if (left.count() <= 0 || poll(&polled, 1, static_cast<int>(left.count())) == 0) break;
    char byte = 0;
    const ssize_t got = read(fd, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (byte == '\n') return net::CheckSecret(std::move(line), "the first line of standard input");
    line += byte;
  }
  return absl::InvalidArgumentError(
      "--tether: standard input has no first line with the job's secret; `ddprun --hosts` starts "
      "such agents, for one of your own leave --tether away");
}

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
