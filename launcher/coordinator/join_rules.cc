#include "launcher/coordinator/join_rules.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ddprun::coordinator {
namespace {

constexpr int64_t kMinorsApartMax = 1;

std::optional<std::pair<int64_t, int64_t>> MajorAndMinor(absl::string_view version) {
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  int64_t major = 0, minor = 0;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &major) ||
      !absl::SimpleAtoi(parts[1], &minor) || major < 0 || minor < 0) {
    return std::nullopt;
  }
  return std::make_pair(major, minor);
}

}  // namespace

bool IsNodeName(absl::string_view name) {
  return !name.empty() && name.size() <= kNodeNameMax &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

std::string Printable(absl::string_view text, size_t bytes) {
  const bool cut = text.size() > bytes;
  return absl::StrCat(absl::CHexEscape(text.substr(0, bytes)), cut ? "..." : "");
}

bool IsLoopback(absl::string_view address) {
  if (absl::StartsWith(address, "[")) address.remove_prefix(1);
  if (absl::EndsWith(address, "]")) address.remove_suffix(1);
  return absl::StartsWith(address, "127.") || absl::StartsWithIgnoreCase(address, "::ffff:127.") ||
         address == "::1" || absl::EqualsIgnoreCase(address, "localhost");
}

std::string VersionMismatch(absl::string_view ours, absl::string_view theirs) {
  const auto here = MajorAndMinor(ours);
  const auto there = MajorAndMinor(theirs);
  if (!here || !there) return "";
  const int64_t apart =
      here->second > there->second ? here->second - there->second : there->second - here->second;
  if (here->first == there->first && apart <= kMinorsApartMax) return "";
  return absl::StrCat("the coordinator's ddprun is ", Printable(ours, 32), ", this node's is ",
                      Printable(theirs, 32),
                      ": they may be one minor version apart, so install the same one");
}

std::string VersionsMismatch(const std::map<std::string, std::string>& ours,
                             const std::map<std::string, std::string>& theirs) {
  std::vector<std::string> differ;
  for (const auto& [what, version] : ours) {
    auto other = theirs.find(what);
    if (other == theirs.end() || other->second == version) continue;
    differ.push_back(absl::StrCat(Printable(what, 32), " ", Printable(other->second, 64),
                                  " and not ", Printable(version, 64)));
  }
  return absl::StrJoin(differ, ", ");
}

}  // namespace ddprun::coordinator
