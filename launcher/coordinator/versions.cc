#include "launcher/coordinator/versions.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/net/text.h"

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

std::string VersionMismatch(absl::string_view ours, absl::string_view theirs) {
  const auto here = MajorAndMinor(ours);
  const auto there = MajorAndMinor(theirs);
  if (!here || !there) return "";
  const int64_t apart =
      here->second > there->second ? here->second - there->second : there->second - here->second;
  if (here->first == there->first && apart <= kMinorsApartMax) return "";
  return absl::StrCat("the coordinator's ddprun is ", net::Shown(ours, 32), ", this node's is ",
                      net::Shown(theirs, 32),
                      ": they may be one minor version apart, so install the same one");
}

std::string VersionsMismatch(const std::map<std::string, std::string>& ours,
                             const std::map<std::string, std::string>& theirs) {
  std::vector<std::string> differ;
  for (const auto& [what, version] : ours) {
    auto other = theirs.find(what);
    if (other == theirs.end() || other->second == version) continue;
    differ.push_back(absl::StrCat(net::Shown(what, 32), " ", net::Shown(other->second, 64),
                                  " and not ", net::Shown(version, 64)));
  }
  return absl::StrJoin(differ, ", ");
}

}  // namespace ddprun::coordinator
