// The keeper's clocks, in nanoseconds: boot time for deadlines (it goes on while the machine
// sleeps, so a lease cannot be slept through; LEASE_CLOCK may choose the monotonic one instead),
// monotonic time for standstills, and real time for what is told to others. Any thread.
#pragma once

#include <cstdint>
#include <ctime>

namespace ddprun::keeper {

inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;

inline int64_t ClockNs(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}
inline int64_t BootNs() {
  return ClockNs(CLOCK_BOOTTIME);
}
inline int64_t MonotonicNs() {
  return ClockNs(CLOCK_MONOTONIC);
}
inline int64_t RealNs() {
  return ClockNs(CLOCK_REALTIME);
}

}  // namespace ddprun::keeper
