// What to start: the spec of proto/keeper_protocol.md, parsed. Pure: no I/O, no clock.
//
// Invariants of a parsed Spec: at least one worker; ranks are unique; each worker has an argument
// and a log. A Spec points into the bytes it was parsed from (arguments and environment go to exec
// as they stand there). REQUIRES: these bytes outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::keeper {

inline constexpr size_t kSpecBytesMax = size_t{256} << 20;  // 4,096 workers with 64 KiB each
inline constexpr size_t kWorkersMax = 4096;
inline constexpr int64_t kLogBytesMaxMin = 4096;  // fewer would make more files than log
inline constexpr int kCpuMax = 8191;              // the highest number that a CPU may have
inline constexpr int64_t kDurationMsMax = int64_t{30} * 86'400'000;  // keeps nanoseconds in range

struct WorkerSpec {
  int64_t rank = 0;
  std::vector<const char*> arguments;    // zero-terminated strings
  std::vector<const char*> environment;  // NAME=VALUE
  const char* directory = nullptr;       // nullptr: the keeper's own
  const char* log = nullptr;
  bool console = false;
  std::vector<int> cpus;  // ascending; empty: as the keeper
};

struct Spec {
  std::string job;
  std::string generation;
  std::string node;
  int64_t grace_ms = 30'000;
  int64_t lease_until_ns = 0;    // 0: none; a moment on the lease's clock
  bool lease_monotonic = false;  // deadlines are counted on CLOCK_MONOTONIC, not CLOCK_BOOTTIME
  int64_t hang_ms = 0;           // 0: off
  bool foreground = false;
  bool standby = false;        // the only worker is a preloader; the real spec comes with Begin
  int64_t log_bytes_max = 0;   // 0: logs are never rotated
  int64_t log_files_kept = 0;  // 0: all
  std::vector<WorkerSpec> workers;
};

// `bytes`: zero-terminated KEY=VALUE strings. Unknown keys are ignored (a later version may add
// them). nullopt and one sentence in *problem when it makes no sense.
std::optional<Spec> ParseSpec(std::string_view bytes, std::string* problem);

}  // namespace ddprun::keeper
