#include "launcher/cli/torchrun_values.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/cli/values.h"
#include "launcher/net/host_text.h"

namespace ddprun::cli {
namespace {

constexpr size_t kHostBytesMax = 253;  // of a name in DNS
constexpr uint32_t kPortMax = 65535;

absl::Status Refused(absl::string_view text) {
  return absl::InvalidArgumentError(text);
}

absl::StatusOr<int> ParseStream(const std::string& text) {
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '3') return text[0] - '0';
  return Refused(
      "give 0 (neither stream), 1 (stdout), 2 (stderr) or 3 (both), or that for local ranks: "
      "0:3,1:0");
}

// Keys of --rdzv-conf that tune mechanisms of torchrun's rendezvous.
constexpr std::array<std::string_view, 11> kTuningKeys = {
    "last_call_timeout",      "close_timeout", "heartbeat_timeout", "keep_alive_interval",
    "keep_alive_max_attempt", "read_timeout",  "use_libuv",         "store_type",
    "heartbeat_interval",     "rank",          "local_addr"};

}  // namespace

absl::StatusOr<StreamChoice> ParseStreams(const std::string& text) {
  StreamChoice choice;
  if (!absl::StrContains(text, ':')) {
    const absl::StatusOr<int> all = ParseStream(text);
    if (!all.ok()) return all.status();
    choice.all = *all;
    return choice;
  }
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> sides = absl::StrSplit(part, ':');
    const absl::StatusOr<uint32_t> rank = ParseCount(sides[0], 0, kProcessesPerNodeMax - 1);
    const absl::StatusOr<int> stream = ParseStream(sides.back());
    if (sides.size() != 2 || !rank.ok() || !stream.ok()) return ParseStream("").status();
    if (!choice.by_local_rank.emplace(*rank, *stream).second) {
      return Refused(absl::StrCat("names local rank ", *rank, " twice"));
    }
  }
  return choice;
}

int ShownStreams(const TorchrunOptions& options, uint32_t local_rank) {
  const int redirected = options.redirects ? options.redirects->Of(local_rank) : 0;
  const int teed = options.tee ? options.tee->Of(local_rank) : 0;
  return (~redirected | teed) & 3;
}

absl::StatusOr<std::vector<uint32_t>> ParseLocalRanks(const std::string& text) {
  std::vector<uint32_t> ranks;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::string number(absl::StripAsciiWhitespace(part));
    const absl::StatusOr<uint32_t> rank = ParseCount(number, 0, kProcessesPerNodeMax - 1);
    if (!rank.ok()) return Refused("give local ranks, for example 0,1,2");
    ranks.push_back(*rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

absl::StatusOr<std::string> ParseHost(const std::string& text) {
  std::string host = text;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const bool plain = !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(c) || std::string_view(".-_:%").find(c) != std::string_view::npos;
  });
  if (!plain || host.size() > kHostBytesMax) {
    return Refused("give a host's name or address, for example 10.0.0.1 or [::1]");
  }
  // host:port is not an address of IPv6, which has two colons at least.
  if (std::count(host.begin(), host.end(), ':') == 1) {
    return Refused("give the host alone; the port is --master-port's");
  }
  const std::string why = net::WhyNoHost(host);
  if (!why.empty()) return Refused(why);
  return host;
}

HostAndPort SplitEndpoint(const std::string& endpoint) {
  HostAndPort parts;
  const size_t colon = endpoint.rfind(':');
  const bool bracketed = endpoint.back() == ']';
  std::string host = endpoint;
  if (colon != std::string::npos && !bracketed) {
    host = endpoint.substr(0, colon);
    [[maybe_unused]] const bool number = absl::SimpleAtoi(endpoint.substr(colon + 1), &parts.port);
  }
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  parts.host = host;
  return parts;
}

absl::StatusOr<std::string> ParseEndpoint(const std::string& text) {
  absl::Status bad = Refused("give HOST:PORT, for example localhost:29400 or [::1]:29400");
  const size_t colon = text.rfind(':');
  std::string host = text;
  if (colon != std::string::npos && text.back() != ']') {
    host = text.substr(0, colon);
    if (!ParseCount(text.substr(colon + 1), 0, kPortMax).ok()) return bad;
    if (absl::StrContains(host, ':') && (host.front() != '[' || host.back() != ']')) {
      return Refused("an IPv6 address stands in brackets: [::1]:29400");
    }
  }
  if (!ParseHost(host).ok()) return bad;
  return text;
}

absl::Status SetRendezvousBackend(const std::string& text, Options* options) {
  if (absl::StartsWith(text, "etcd")) {
    return Refused(
        "ddprun needs no etcd for its workers to find each other; leave it away (static and c10d "
        "are accepted)");
  }
  if (text != "static" && text != "c10d") {
    return Refused(
        "ddprun brings its own rendezvous, and none of Python's plug-ins; leave it away, or give "
        "static or c10d");
  }
  options->torchrun.rdzv_backend = text;
  return absl::OkStatus();
}

absl::Status SetRendezvousConfiguration(const std::string& text, Options* options) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
    const std::string key(absl::StripAsciiWhitespace(sides[0]));
    if (sides.size() != 2 || key.empty()) {
      return Refused("give KEY=VALUE,…, for example join_timeout=900");
    }
    if (key == "join_timeout" || key == "timeout") {
      const absl::StatusOr<double> seconds =
          ParsePositiveSeconds(std::string(absl::StripAsciiWhitespace(sides[1])));
      if (!seconds.ok()) {
        return Refused(absl::StrCat(key, "=", sides[1], ": ", seconds.status().message()));
      }
      options->torchrun.join_timeout_seconds = *seconds;
      continue;
    }
    if (key == "is_host") {
      const std::string value = absl::AsciiStrToLower(absl::StripAsciiWhitespace(sides[1]));
      const bool yes =
          value == "1" || value == "true" || value == "t" || value == "yes" || value == "y";
      const bool no =
          value == "0" || value == "false" || value == "f" || value == "no" || value == "n";
      if (!yes && !no) return Refused(absl::StrCat("is_host=", sides[1], ": give true or false"));
      options->torchrun.is_host = yes;
      continue;
    }
    if (std::find(kTuningKeys.begin(), kTuningKeys.end(), key) == kTuningKeys.end()) {
      return Refused(absl::StrCat(key,
                                  " has no effect here: ddprun brings its own rendezvous; "
                                  "join_timeout is understood (or --join-timeout), --lease says "
                                  "when a silent node is given up"));
    }
    options->notes.push_back(absl::StrCat("--rdzv-conf ", key,
                                          ": ddprun's rendezvous has nothing to tune there; see "
                                          "--join-timeout and --lease"));
  }
  return absl::OkStatus();
}

absl::Status SetMonitorInterval(const std::string& text, Options* options) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !(seconds >= 0) || !(seconds <= kSecondsMax)) {
    return Refused("give seconds, for example 0.1");
  }
  options->notes.push_back("--monitor-interval: not needed, the end of a worker is seen at once");
  return absl::OkStatus();
}

absl::Status CheckStartMethod(const std::string& text) {
  if (text == "spawn") return absl::OkStatus();
  if (text == "fork" || text == "forkserver") {
    return Refused(
        "has no effect on programs, which are executed, never forked from Python; leave it away");
  }
  return Refused("torchrun knows spawn, fork and forkserver; leave it away");
}

absl::Status CheckEventHandler(const std::string& text) {
  if (text == "null") return absl::OkStatus();
  return Refused(
      "Python's event handlers cannot be called from here; leave it away and read events.jsonl in "
      "the run folder, or see --on-failure and --on-finish");
}

}  // namespace ddprun::cli
