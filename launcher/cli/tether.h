// The other end of RemoteAgents: an agent that was started by another ddprun is told by the end of
// its standard input that the other has gone. (Its first line, the secret, was read before.)
#pragma once

#include <functional>
#include <thread>

namespace ddprun::cli {

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
