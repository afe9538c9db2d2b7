// The options of `ddprun logs`.
#include <ctime>
#include <limits>

#include "absl/strings/numbers.h"
#include "launcher/cli/option_rows.h"
#include "launcher/cli/values.h"

namespace ddprun::cli {
namespace {

constexpr uint32_t kTailLinesMax = 100'000'000;

// A date and time of the local clock, in one of the usual spellings.
std::optional<double> LocalTime(const std::string& text) {
  for (const char* format :
       {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    tm local = {};
    local.tm_isdst = -1;
    const char* end = strptime(text.c_str(), format, &local);
    if (end != nullptr && *end == '\0') return static_cast<double>(mktime(&local));
  }
  return std::nullopt;
}

absl::Status SetSince(OptionText text, LogsOptions* o) {
  o->since_seconds.reset();
  o->since_seconds_ago.reset();
  double epoch = 0;
  if (text[0] == '@' && absl::SimpleAtod(text.substr(1), &epoch)) {
    o->since_seconds = epoch;
  } else if (const std::optional<double> local = LocalTime(text)) {
    o->since_seconds = local;
  } else if (const absl::StatusOr<double> ago = ParseSeconds(text); ago.ok()) {
    o->since_seconds_ago = *ago;
  } else {
    return absl::InvalidArgumentError(
        "give how long ago (90s, 30m, 2h, 1d), a local time (2026-11-30 14:05) or @ and seconds "
        "since 1970");
  }
  return absl::OkStatus();
}

}  // namespace

OptionRowList LogsRows() {
  return {
      {"-f,--follow", "", kForLogs, kGroupLogs,
       "Goes on with what is printed until the job ends, over restarts",
       [](OptionText, Options* o) {
         o->logs.follow = true;
         return absl::OkStatus();
       }},
      {"--rank,--ranks", "LIST", kForLogs, kGroupLogs,
       "Ranks to show, for example 0 or 0,4-7. Default: all",
       [](OptionText v, Options* o) { return StoreOption(ParseRanks(v), &o->logs.ranks); }},
      {"--generation", "N", kForLogs, kGroupLogs,
       "Only this generation (the first is 1). Default: all, one after the other",
       [](OptionText v, Options* o) {
         return StoreOption(ParseCount(v, 1, std::numeric_limits<uint32_t>::max()),
                            &o->logs.generation);
       }},
      {"--since", "TIME", kForLogs, kGroupLogs,
       "Only what was printed then or later: so long ago (90s, 30m, 2h, 1d), a local time "
       "(2026-11-30 14:05), or @ and seconds since 1970",
       [](OptionText v, Options* o) { return SetSince(v, &o->logs); }},
      {"--tail", "N", kForLogs, kGroupLogs,
       "Only the last N lines of each rank, of the newest generation unless --generation is given",
       [](OptionText v, Options* o) {
         return StoreOption(ParseCount(v, 0, kTailLinesMax), &o->logs.tail);
       }},
  };
}

}  // namespace ddprun::cli
