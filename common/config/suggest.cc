// "Did you mean": the nearest key or section by edit distance, over names and what people type
// instead.
#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/config/key_table.h"
#include "common/edit_distance.h"

namespace ddprun {
namespace {

// A suggestion that differs in more than about a third of its letters is noise.
bool NearEnough(size_t distance, size_t length) {
  return distance <= std::max<size_t>(1, (length + 1) / 3);
}

constexpr size_t kNameBytesMax = 64;  // longer names get no suggestion: the distance is quadratic

}  // namespace

std::string SuggestKey(absl::string_view section, absl::string_view name) {
  if (name.size() > kNameBytesMax) return "";
  const std::string lower = absl::AsciiStrToLower(name);
  const KeySpec* best = nullptr;
  size_t best_score = std::numeric_limits<size_t>::max();
  for (const KeySpec& key : TrainConfigKeys()) {
    std::vector<absl::string_view> candidates = key.aliases;
    candidates.push_back(key.name);
    for (absl::string_view candidate : candidates) {
      const size_t distance =
          EditDistance(lower, std::string_view(candidate.data(), candidate.size()));
      if (!NearEnough(distance, std::max(candidate.size(), lower.size()))) continue;
      // On equal distance a key of the same section wins.
      const size_t score = 2 * distance + (key.section == section ? 0 : 1);
      if (score < best_score) {
        best_score = score;
        best = &key;
      }
    }
  }
  if (best == nullptr) return "";
  if (best->section == section) return absl::StrCat("; did you mean \"", best->name, "\"?");
  return absl::StrCat("; did you mean \"", best->name, "\" of [", best->section, "]?");
}

std::string SuggestSection(absl::string_view section) {
  if (section.size() > kNameBytesMax) return "";
  const std::string lower = absl::AsciiStrToLower(section);
  absl::string_view best;
  size_t best_distance = std::numeric_limits<size_t>::max();
  for (const KeySpec& key : TrainConfigKeys()) {
    const size_t distance =
        EditDistance(lower, std::string_view(key.section.data(), key.section.size()));
    if (distance < best_distance &&
        NearEnough(distance, std::max(key.section.size(), lower.size()))) {
      best_distance = distance;
      best = key.section;
    }
  }
  return best.empty() ? "" : absl::StrCat("; did you mean [", best, "]?");
}

}  // namespace ddprun
