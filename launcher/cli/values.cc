#include "launcher/cli/values.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/net/host_text.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

constexpr size_t kNameBytesMax = 100;     // fits into a file name together with what is added to it
constexpr size_t kNodeNameBytesMax = 64;  // as the coordinator takes them
constexpr size_t kHostShownBytes = 80;
constexpr size_t kRanksMax = 100'000;

absl::Status Bad(absl::string_view text) {
  return absl::InvalidArgumentError(text);
}

bool AllDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

}  // namespace

absl::StatusOr<uint32_t> ParseCount(const std::string& text, uint32_t min, uint32_t max) {
  uint64_t number = 0;
  if (!AllDigits(text) || !absl::SimpleAtoi(text, &number) || number < min || number > max) {
    return Bad(absl::StrCat("give a whole number from ", min, " to ", max));
  }
  return static_cast<uint32_t>(number);
}

absl::StatusOr<Processes> ParseProcesses(const std::string& text) {
  if (text == "gpu") return Processes{Processes::Kind::kGpus, 0};
  if (text == "cpu") return Processes{Processes::Kind::kCpus, 0};
  if (text == "auto") return Processes{Processes::Kind::kAuto, 0};
  if (text == "xpu") {
    return Bad("ddprun counts no Intel GPUs; give their number, for example --nproc 4");
  }
  const absl::StatusOr<uint32_t> number = ParseCount(text, 1, kProcessesPerNodeMax);
  if (number.ok()) return Processes{Processes::Kind::kNumber, *number};
  return Bad(absl::StrCat("give a whole number from 1 to ", kProcessesPerNodeMax,
                          ", or gpu (one for each GPU), cpu (one for each core) or auto"));
}

absl::StatusOr<std::pair<uint32_t, uint32_t>> ParseNodes(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  const std::string fix =
      absl::StrCat("give N or MIN:MAX, whole numbers from 1 to ", kNodesMax, ", for example 2:4");
  if (parts.size() > 2) return Bad(fix);
  const absl::StatusOr<uint32_t> min = ParseCount(parts[0], 1, kNodesMax);
  const absl::StatusOr<uint32_t> max = ParseCount(parts.back(), 1, kNodesMax);
  if (!min.ok() || !max.ok()) return Bad(fix);
  if (*min > *max) return Bad("the minimum is greater than the maximum");
  return std::pair{*min, *max};
}

absl::StatusOr<double> ParseSeconds(const std::string& text) {
  absl::Status bad =
      Bad("give seconds, or a time with a unit, for example 30, 0.5, 90s, 30m, 2h, 1d or 1h30m");
  double seconds = 0;
  size_t at = 0;
  do {
    size_t end = at;
    while (end < text.size() && (absl::ascii_isdigit(text[end]) || text[end] == '.')) ++end;
    double number = 0;
    if (end == at || !absl::SimpleAtod(text.substr(at, end - at), &number)) return bad;
    double unit = 1;
    if (end < text.size()) {
      const char letter = text[end++];
      unit = letter == 's'   ? 1
             : letter == 'm' ? 60
             : letter == 'h' ? 3600
             : letter == 'd' ? 86400
                             : 0;
      if (unit == 0) return bad;
    } else if (at != 0) {
      return bad;  // 1h30: minutes or seconds?
    }
    seconds += number * unit;
    at = end;
  } while (at < text.size());
  if (!(seconds <= kSecondsMax)) return Bad("is more than a year");
  return seconds;
}

absl::StatusOr<double> ParsePositiveSeconds(const std::string& text) {
  absl::StatusOr<double> seconds = ParseSeconds(text);
  if (seconds.ok() && *seconds <= 0) return Bad("give more than 0");
  return seconds;
}

absl::StatusOr<std::vector<std::string>> ParseGpus(const std::string& text) {
  std::vector<std::string> gpus = absl::StrSplit(text, ',');
  for (size_t i = 0; i < gpus.size(); ++i) {
    const std::string& gpu = gpus[i];
    const bool index = AllDigits(gpu) && gpu.size() <= 4;
    if (!index && !absl::StartsWith(gpu, "GPU-") && !absl::StartsWith(gpu, "MIG-")) {
      return Bad("give indices or UUIDs, separated by commas, for example 0,2");
    }
    if (std::find(gpus.begin(), gpus.begin() + static_cast<ptrdiff_t>(i), gpu) !=
        gpus.begin() + static_cast<ptrdiff_t>(i)) {
      return Bad(absl::StrCat("names GPU ", gpu, " twice"));
    }
  }
  return gpus;
}

absl::StatusOr<std::vector<uint32_t>> ParseRanks(const std::string& text) {
  std::vector<uint32_t> ranks;
  if (text == "all") return ranks;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    const absl::StatusOr<uint32_t> first = ParseCount(ends[0], 0, kRanksMax);
    const absl::StatusOr<uint32_t> last = ParseCount(ends.back(), 0, kRanksMax);
    if (ends.size() > 2 || !first.ok() || !last.ok() || *first > *last) {
      return Bad("give ranks, for example 0 or 0,4-7, or all");
    }
    for (uint32_t rank = *first; rank <= *last; ++rank) ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

absl::StatusOr<std::string> ParseName(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  if (!plain || text.size() > kNameBytesMax || !absl::ascii_isalnum(text[0])) {
    return Bad(absl::StrCat("give at most ", kNameBytesMax,
                            " letters, digits, dots, hyphens and underscores, beginning with a "
                            "letter or digit"));
  }
  if (text == "latest") return Bad("this name is taken: runs/latest points to the newest run");
  return text;
}

absl::StatusOr<std::string> ParseNodeName(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  const bool dots = text.find_first_not_of('.') == std::string::npos;  // . and .. are folders
  if (!plain || dots || text.size() > kNodeNameBytesMax) {
    return Bad(absl::StrCat("give at most ", kNodeNameBytesMax,
                            " letters, digits, dots, hyphens and underscores, and not dots alone"));
  }
  return text;
}

absl::StatusOr<std::string> ParsePreload(const std::string& text) {
  for (absl::string_view name : absl::StrSplit(text, ',')) {
    const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
      return absl::ascii_isalnum(c) || c == '_' || c == '.';
    });
    if (!plain || name.empty() || absl::ascii_isdigit(name[0]) || name[0] == '.') {
      return Bad("give auto, none, or names of Python modules, for example torch,numpy");
    }
  }
  return text;
}

absl::StatusOr<std::string> ParseAddress(const std::string& text, bool port_zero_allowed) {
  const size_t colon = text.rfind(':');
  const std::string fix = absl::StrCat("give HOST:PORT, for example 10.0.0.1:29400 or [::1]:29400",
                                       port_zero_allowed ? "; port 0 lets the system choose" : "");
  if (colon == std::string::npos || colon == 0) return Bad(fix);
  const std::string host = text.substr(0, colon);
  if (!ParseCount(text.substr(colon + 1), port_zero_allowed ? 0 : 1, 65535).ok()) return Bad(fix);
  const bool bracketed = host.front() == '[' && host.back() == ']';
  if (!bracketed && absl::StrContains(host, ':')) {
    return Bad("an IPv6 address stands in brackets: [::1]:29400");
  }
  const std::string bare = bracketed ? host.substr(1, host.size() - 2) : host;
  if (bracketed && !absl::StrContains(bare, ':')) {
    return Bad("only an IPv6 address stands in brackets, as in [::1]:29400");
  }
  const std::string why = net::WhyNoHost(bare);
  if (!why.empty())
    return Bad(absl::StrCat(net::Shown(bare, kHostShownBytes), " ", why, "; ", fix));
  return text;
}

}  // namespace ddprun::cli
