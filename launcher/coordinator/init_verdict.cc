#include "launcher/coordinator/init_verdict.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/coordinator/waiting_call.h"

namespace ddprun::coordinator {
namespace {

constexpr size_t kGroupsNamedMax = 8;
constexpr size_t kGroupRanksMax = 16;

struct Standing {
  uint32_t rank = 0;
  bool waits = false;
  std::string where;
  const v1::WorkerPlace* place = nullptr;  // none: its node did not answer
};

Standing StandingOf(uint32_t rank, const v1::WorkerPlace* place) {
  Standing standing{rank, false, "its node did not answer", place};
  if (place == nullptr) return standing;
  if (place->speaks() && place->collective_started() > place->collective_finished()) {
    standing.waits = true;
    standing.where = absl::StrCat(
        "waiting in collective ", place->collective_started(),
        place->collective().empty() ? "" : absl::StrCat(" (", place->collective(), ")"));
    return standing;
  }
  const std::string call = WaitingCall(place->stack());
  if (!call.empty()) {
    standing.waits = true;
    standing.where = absl::StrCat("waiting in ", call);
  } else if (place->speaks()) {
    standing.waits = place->phase() == "connecting";
    standing.where = place->phase();
  } else {
    standing.where = place->state().empty() ? "not yet using libddprun" : place->state();
  }
  return standing;
}

template <typename Value>
void KeepLeast(std::vector<Standing>& standings, Value value) {
  auto least = value(*standings[0].place);
  for (const Standing& one : standings) least = std::min(least, value(*one.place));
  std::erase_if(standings, [&](const Standing& one) { return value(*one.place) != least; });
}

// Of ranks that all use libddprun.
void NarrowByCollectives(std::vector<Standing>& standings) {
  const bool speak = std::all_of(standings.begin(), standings.end(), [](const Standing& one) {
    return one.place != nullptr && one.place->speaks();
  });
  if (standings.empty() || !speak) return;
  KeepLeast(standings, [](const v1::WorkerPlace& place) { return place.collective_finished(); });
  KeepLeast(standings, [](const v1::WorkerPlace& place) { return place.collective_started(); });
}

std::string RanksText(const std::vector<uint32_t>& ranks) {
  std::vector<uint32_t> shown(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                 ranks.size(), kGroupRanksMax)));
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(shown, ", "),
                      ranks.size() > shown.size()
                          ? absl::StrCat(" and ", ranks.size() - shown.size(), " more")
                          : "");
}

// "rank 2: loading; ranks 0, 1: waiting in ncclCommInitRank". The first: `behind`, where known.
std::string WhereText(const std::vector<Standing>& standings, int64_t behind) {
  std::vector<std::pair<std::string, std::vector<uint32_t>>> groups;
  for (const bool first : {true, false}) {
    for (const Standing& one : standings) {
      if ((static_cast<int64_t>(one.rank) == behind) != first) continue;
      auto group = std::find_if(groups.begin(), groups.end(),
                                [&](const auto& known) { return known.first == one.where; });
      // The one behind stands alone.
      const bool apart = group == groups.end() || (behind >= 0 && group == groups.begin());
      if (apart && groups.size() == kGroupsNamedMax) continue;
      if (apart) group = groups.insert(groups.end(), {one.where, {}});
      group->second.push_back(one.rank);
    }
  }
  return absl::StrJoin(groups, "; ", [](std::string* out, const auto& group) {
    absl::StrAppend(out, RanksText(group.second), ": ", group.first);
  });
}

}  // namespace

InitVerdict JudgeInit(const std::set<uint32_t>& missing,
                      const std::map<uint32_t, v1::WorkerPlace>& places) {
  std::vector<Standing> standings, behind;
  for (const uint32_t rank : missing) {
    const auto place = places.find(rank);
    standings.push_back(StandingOf(rank, place == places.end() ? nullptr : &place->second));
    if (!standings.back().waits) behind.push_back(standings.back());
  }
  if (standings.empty()) return {};
  const bool all_wait = behind.empty();
  if (all_wait) behind = standings;
  NarrowByCollectives(behind);
  InitVerdict verdict;
  if (behind.size() == 1) verdict.rank = behind[0].rank;
  const std::string where = WhereText(standings, verdict.rank);
  if (verdict.rank >= 0) {
    verdict.reason = standings.size() == 1
                         ? where
                         : absl::StrCat("rank ", verdict.rank, " is behind (", where, ")");
  } else {
    verdict.reason = absl::StrCat(
        all_wait ? "all of them wait" : "it cannot be told which is behind", " (", where, ")");
  }
  return verdict;
}

}  // namespace ddprun::coordinator
