// The index beside a worker's log: when which part of it was written. `<LOG>.times` starts with the
// 16 bytes of kLogTimesHeader, then come records in the order of writing, in the machine's byte
// order; an incomplete record at the end does not count.
//
// A record says: the bytes from `offset` of the log on were read from the worker at `time_ns`
// (CLOCK_REALTIME) or later. Times may step back where somebody sets the clock; offsets never do.
// Written by the keeper, read by `ddprun logs`; a log without it is complete all the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun {

struct LogTime {
  int64_t time_ns = 0;
  uint64_t offset = 0;
};
static_assert(sizeof(LogTime) == 16);

inline constexpr char kLogTimesHeader[16 + 1] = "ddprun times 1\n\n";
inline constexpr size_t kLogTimesHeaderBytes = 16;
inline constexpr char kLogTimesSuffix[] = ".times";

// Records come at most once in so long; the interval doubles after each kLogTimesPerInterval
// records. So the index of a log that is written to all the time has 4 MiB after 44 minutes, 36 MiB
// after a week, and tells times to 2.6 s then.
inline constexpr int64_t kLogTimesIntervalNs = 10'000'000;
inline constexpr uint64_t kLogTimesPerInterval = 262'144;
inline constexpr uint64_t kLogTimesDoublingsMax = 20;

inline int64_t LogTimesInterval(uint64_t records) {
  const uint64_t doublings = records / kLogTimesPerInterval;
  return kLogTimesIntervalNs << (doublings < kLogTimesDoublingsMax ? doublings
                                                                   : kLogTimesDoublingsMax);
}

}  // namespace ddprun
