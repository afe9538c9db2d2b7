// Values of options: text → value, each with a text that says what is expected. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/options.h"

namespace ddprun::cli {

// More processes on one machine than anybody starts; keeps arithmetic and tables small.
inline constexpr uint32_t kProcessesPerNodeMax = 4096;
inline constexpr uint32_t kNodesMax = 16384;
inline constexpr uint32_t kRestartsMax = 1'000'000;
inline constexpr uint32_t kLogFilesMax = 100'000;
inline constexpr uint32_t kRunsKeptMax = 1'000'000;
inline constexpr uint32_t kStrikesMax = 1'000'000;
inline constexpr double kSecondsMax = 365.0 * 86400;

absl::StatusOr<Processes> ParseProcesses(const std::string& text);
// N or MIN:MAX.
absl::StatusOr<std::pair<uint32_t, uint32_t>> ParseNodes(const std::string& text);
absl::StatusOr<uint32_t> ParseCount(const std::string& text, uint32_t min, uint32_t max);
// 90, 0.5, 90s, 30m, 2h, 1d, 1h30m; at most a year.
absl::StatusOr<double> ParseSeconds(const std::string& text);
absl::StatusOr<double> ParsePositiveSeconds(const std::string& text);
// Indices or UUIDs, separated by commas, none twice.
absl::StatusOr<std::vector<std::string>> ParseGpus(const std::string& text);
// 0,2,4-7 or all (an empty list).
absl::StatusOr<std::vector<uint32_t>> ParseRanks(const std::string& text);
// A name that is good as a folder's name.
absl::StatusOr<std::string> ParseName(const std::string& text);
// A node's name: 1 to 64 letters, digits, dots, hyphens and underscores.
absl::StatusOr<std::string> ParseNodeName(const std::string& text);
// auto, none, or names of Python modules separated by commas.
absl::StatusOr<std::string> ParsePreload(const std::string& text);
// HOST:PORT, [IPv6]:PORT.
absl::StatusOr<std::string> ParseAddress(const std::string& text, bool port_zero_allowed);

}  // namespace ddprun::cli
