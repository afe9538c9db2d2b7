// The other end of RemoteAgents: an agent that was started by another ddprun reads the job's secret
// from its standard input, and is told by the end of it that the other has gone.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace ddprun::cli {

// The first line of `fd`, without its end. Blocks for a bounded time; reads no byte behind it.
absl::StatusOr<std::string> ReadSecretLine(int fd);

// Calls `on_end` once, from a thread of its own, when `fd` has ended.
class Tether {
 public:
  Tether(int fd, std::function<void()> on_end);
  ~Tether();  // no call after this
  Tether(const Tether&) = delete;
  Tether& operator=(const Tether&) = delete;

 private:
  void Run();

  const int fd_;
  const int stop_fd_;
  std::function<void()> on_end_;
  std::thread thread_;
};

}  // namespace ddprun::cli
