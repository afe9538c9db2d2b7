// Children of this process that are its own business: whoever ends the orphans of workers leaves
// them and what they started alone. Thread-safe; one list per process.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace ddprun {

class OwnChildren {
 public:
  static OwnChildren& Get() {
    static OwnChildren children;
    return children;
  }
  // Runs `spawn`, which starts a process and returns its id (<= 0: none), and notes it before
  // anybody can look.
  template <typename Spawn>
  pid_t Add(Spawn spawn) {
    std::lock_guard lock(mutex_);
    const pid_t pid = spawn();
    if (pid > 0) pids_.push_back(pid);
    return pid;
  }
  // After it was reaped.
  void Remove(pid_t pid) {
    std::lock_guard lock(mutex_);
    pids_.erase(std::remove(pids_.begin(), pids_.end(), pid), pids_.end());
  }
  std::vector<pid_t> List() const {
    std::lock_guard lock(mutex_);
    return pids_;
  }

 private:
  OwnChildren() = default;
  mutable std::mutex mutex_;
  std::vector<pid_t> pids_;
};

}  // namespace ddprun
