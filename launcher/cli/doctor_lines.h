// Lines of bounded length from a file descriptor, each with a deadline. One thread.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>

namespace ddprun::doctor {

class LineReader {
 public:
  LineReader(int fd, size_t bytes_max) : fd_(fd), bytes_max_(bytes_max) {}

  // nullopt: the end has come, the deadline, or a line that is too long.
  std::optional<std::string> Next(std::chrono::steady_clock::time_point deadline) {
    for (;;) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      if (buffer_.size() > bytes_max_) return std::nullopt;
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd polled = {fd_, POLLIN, 0};
      const int wait = static_cast<int>(std::max<int64_t>(left.count(), 0));
      if (poll(&polled, 1, wait) <= 0) return std::nullopt;
      std::array<char, 4096> chunk;
      const ssize_t got = read(fd_, chunk.data(), chunk.size());
      if (got <= 0) return std::nullopt;
      buffer_.append(chunk.data(), static_cast<size_t>(got));
    }
  }

 private:
  int fd_;
  size_t bytes_max_;
  std::string buffer_;
};

}  // namespace ddprun::doctor
