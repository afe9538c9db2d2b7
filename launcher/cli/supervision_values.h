// Values of the options that say what becomes of failures: codes, signals, sizes. Each error says
// what is expected. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ddprun::cli {

// Codes of workers go from 1 to 255 (0 is no failure; 128 + n stands for signal n).
inline constexpr int32_t kWorkerCodeMax = 255;

// "TERM", "SIGTERM", "sigterm" or "15".
absl::StatusOr<int32_t> ParseSignal(const std::string& text);
// 3,10-20,SIGKILL: sorted, none twice.
absl::StatusOr<std::vector<int32_t>> ParseCodes(const std::string& text);
// 85=75,SIGSEGV=3.
absl::StatusOr<std::map<int32_t, int32_t>> ParseCodeMap(const std::string& text);
// Signals that can be passed on without harm; "none" is an empty list.
absl::StatusOr<std::vector<int32_t>> ParseForwardedSignals(const std::string& text);
// Signals that can stop a job.
absl::StatusOr<std::vector<int32_t>> ParseStopSignals(const std::string& text);
// 4096, 64K, 100M, 2G (powers of 1024); 0 or at least 4 KiB.
absl::StatusOr<uint64_t> ParseBytes(const std::string& text);

// "SIGTERM"
std::string SignalName(int32_t signal);

}  // namespace ddprun::cli
