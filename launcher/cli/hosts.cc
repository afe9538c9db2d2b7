#include "launcher/cli/hosts.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/net/host_text.h"
#include "launcher/net/input_file.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

constexpr uint32_t kSlotsMax = 1024;
constexpr size_t kHostFileBytesMax = 1u << 20;

absl::Status Bad(absl::string_view entry, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(net::Shown(entry), ": ", why));
}

bool MayBeUser(absl::string_view user) {
  if (user.empty() || user[0] == '-') return false;
  return std::all_of(user.begin(), user.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("._-+\\").find(c) != absl::string_view::npos;
  });
}

std::string NodeName(const std::string& host) {
  std::string name = host;
  if (name.size() > net::kNameBytesMax) name = name.substr(0, name.find('.'));
  if (name.size() > net::kNameBytesMax) name.resize(net::kNameBytesMax);
  for (char& c : name) {
    if (!net::IsName(absl::string_view(&c, 1))) c = '-';
  }
  return name;
}

absl::StatusOr<uint32_t> ParseSlots(absl::string_view entry, absl::string_view text) {
  uint32_t slots = 0;
  if (!absl::SimpleAtoi(text, &slots) || slots == 0 || slots > kSlotsMax) {
    return Bad(entry, absl::StrCat("behind the colon stands the number of workers, 1 to ",
                                   kSlotsMax, ", as in a:4 (a port: --ssh 'ssh -p PORT')"));
  }
  return slots;
}

// [user@]host[:slots], with an IPv6 address in brackets.
absl::StatusOr<HostEntry> ParseHost(absl::string_view text) {
  HostEntry entry;
  absl::string_view rest = text;
  std::string user;
  if (const size_t at = rest.rfind('@'); at != absl::string_view::npos) {
    user = std::string(rest.substr(0, at + 1));
    if (!MayBeUser(rest.substr(0, at))) return Bad(text, "no name of a user stands before the @");
    rest.remove_prefix(at + 1);
  }
  absl::string_view slots;
  if (absl::ConsumePrefix(&rest, "[")) {
    const size_t end = rest.find(']');
    if (end == absl::string_view::npos) return Bad(text, "the bracket ] is missing");
    entry.host = std::string(rest.substr(0, end));
    rest.remove_prefix(end + 1);
    if (!rest.empty() && !absl::ConsumePrefix(&rest, ":")) {
      return Bad(text, "only :SLOTS may follow upon the bracket");
    }
    slots = rest;
  } else if (std::count(rest.begin(), rest.end(), ':') > 1) {
    return Bad(text, "write an IPv6 address in brackets, as in [fd00::2] or [fd00::2]:4");
  } else {
    const size_t colon = rest.find(':');
    entry.host = std::string(rest.substr(0, colon));
    if (colon != absl::string_view::npos) {
      slots = rest.substr(colon + 1);
      if (slots.empty()) return Bad(text, "the number of workers is missing behind the colon");
    }
  }
  std::string why = net::WhyNoHost(entry.host);
  if (why.empty()) why = net::WhyNobodysAddress(entry.host);
  if (!why.empty()) return Bad(text, why);
  if (!slots.empty()) {
    const auto number = ParseSlots(text, slots);
    if (!number.ok()) return number.status();
    entry.slots = *number;
  }
  entry.target = user + entry.host;
  entry.node = NodeName(entry.host);
  return entry;
}

absl::Status CheckAll(const std::vector<HostEntry>& hosts) {
  if (hosts.empty()) return absl::InvalidArgumentError("names no host");
  if (hosts.size() > kHostsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("names ", hosts.size(), " hosts, and ", kHostsMax,
                     " are possible: use Slurm, or the same command with --coordinator on each"));
  }
  std::set<std::string> names;
  for (const HostEntry& host : hosts) {
    if (!names.insert(host.node).second) {
      return Bad(host.host,
                 "is named twice: write it once, with the number of workers behind a "
                 "colon");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<HostEntry> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  absl::StatusOr<HostEntry> entry = ParseHost(words[0]);
  if (!entry.ok()) return entry.status();
  for (size_t i = 1; i < words.size(); ++i) {
    absl::string_view slots = words[i];
    if (!absl::ConsumePrefix(&slots, "slots=")) {
      return Bad(words[i], "only slots=N may follow upon the host");
    }
    const auto number = ParseSlots(words[i], slots);
    if (!number.ok()) return number.status();
    entry->slots = *number;
  }
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<HostEntry>> ParseHostFile(const std::string& content,
                                                     const std::string& path) {
  std::vector<HostEntry> hosts;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    absl::StatusOr<HostEntry> host = ParseLine(line);
    if (!host.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": ", host.status().message()));
    }
    hosts.push_back(*std::move(host));
  }
  absl::Status status = CheckAll(hosts);
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  return hosts;
}

absl::StatusOr<std::vector<HostEntry>> ReadHosts(const std::string& text) {
  absl::string_view file = text;
  if (absl::ConsumePrefix(&file, "@")) {
    const std::string path(file);
    const absl::StatusOr<std::string> content = net::ReadInputFile(
        path, absl::StrCat("--hosts ", text), "list of hosts", kHostFileBytesMax);
    if (!content.ok()) return content.status();
    auto hosts = ParseHostFile(*content, path);
    if (hosts.ok()) return hosts;
    return absl::InvalidArgumentError(absl::StrCat("--hosts: ", hosts.status().message()));
  }
  std::vector<HostEntry> hosts;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    absl::StatusOr<HostEntry> host = ParseHost(absl::StripAsciiWhitespace(part));
    if (!host.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--hosts: ", host.status().message()));
    }
    hosts.push_back(*std::move(host));
  }
  absl::Status status = CheckAll(hosts);
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("--hosts: ", status.message()));
  return hosts;
}

}  // namespace ddprun::cli
