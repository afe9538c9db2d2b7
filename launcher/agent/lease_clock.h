// Which clock an agent counts its lease on. Boot time goes on while the machine sleeps: a node that
// slept finds that it has been replaced, and its workers dead. A coordinator on the same machine
// sleeps with it and has replaced nobody; then the clock stands still too. Any one thread.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>

namespace ddprun::agent {

class LeaseClock {
 public:
  // A Welcome came from a coordinator with this boot id (common/boot_id.h). Once boot time has been
  // chosen it stays, since no lease may get longer than it was given.
  void Welcomed(const std::string& own_boot_id, const std::string& coordinator_boot_id) {
    const bool shared = !own_boot_id.empty() && own_boot_id == coordinator_boot_id;
    id_ = shared && (!welcomed_ || id_ == CLOCK_MONOTONIC) ? CLOCK_MONOTONIC : CLOCK_BOOTTIME;
    welcomed_ = true;
  }
  clockid_t id() const { return id_; }
  int64_t NowNs() const { return NowNs(id_); }
  static int64_t NowNs(clockid_t clock) {
    timespec now = {};
    clock_gettime(clock, &now);
    return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  }
  bool monotonic() const { return id_ == CLOCK_MONOTONIC; }

 private:
  clockid_t id_ = CLOCK_BOOTTIME;
  bool welcomed_ = false;
};

}  // namespace ddprun::agent
