#include "launcher/coordinator/hang_verdict.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/coordinator/waiting_call.h"

namespace ddprun::coordinator {
namespace {

using Places = std::vector<const v1::WorkerPlace*>;

// Two pages' times are exact to far below this; what is seen only by looks is not (keeper: eight
// looks in a time-out).
constexpr double kPageResolutionSeconds = 0.005;
constexpr double kLooksPerTimeout = 8;
constexpr double kLookMarginSeconds = 1;

bool InCollective(const v1::WorkerPlace& place) {
  return place.collective_started() > place.collective_finished();
}

std::string CollectiveName(const v1::WorkerPlace& place) {
  return place.collective().empty() ? "" : absl::StrCat(" (", place.collective(), ")");
}

std::string Still(double seconds) {
  return absl::StrFormat("%.1f s", seconds);
}

// Keeps those with the smallest value. True: some were left out.
template <typename Value>
bool Narrow(Places& places, Value value) {
  auto least = value(*places[0]);
  for (const auto* place : places) least = std::min(least, value(*place));
  return std::erase_if(places, [&](const auto* place) { return value(*place) != least; }) > 0;
}

std::string BehindText(const v1::WorkerPlace& place) {
  return absl::StrCat("rank ", place.rank(), " is behind");
}

// Of ranks that use libddprun; "" where more than one is left in `places`.
std::string NarrowByProgress(Places& places) {
  const v1::WorkerPlace first = *places[0];
  uint64_t newest_step = 0;
  for (const auto* place : places) newest_step = std::max(newest_step, place->step());
  if (Narrow(places, [](const auto& place) { return place.step(); }) && places.size() == 1) {
    return absl::StrCat(BehindText(*places[0]), ": it has completed step ", places[0]->step(),
                        ", another one step ", newest_step);
  }
  uint64_t most = 0;
  for (const auto* place : places) most = std::max(most, place->collective_finished());
  if (Narrow(places, [](const auto& place) { return place.collective_finished(); }) &&
      places.size() == 1) {
    return absl::StrCat(BehindText(*places[0]), " in step ", places[0]->step() + 1,
                        ": it has finished ", places[0]->collective_finished(),
                        " collectives, another one ", most);
  }
  const v1::WorkerPlace* waiting = nullptr;
  for (const auto* place : places) {
    if (InCollective(*place)) waiting = place;
  }
  const bool fewer = Narrow(places, [](const auto& place) { return place.collective_started(); });
  if (fewer && places.size() == 1 && waiting != nullptr) {
    return absl::StrCat(BehindText(*places[0]), " in step ", places[0]->step() + 1,
                        ": it has not come to collective ", waiting->collective_started(),
                        CollectiveName(*waiting), ", in which others wait");
  }
  const bool outside =
      Narrow(places, [](const auto& place) { return InCollective(place) ? 1 : 0; });
  if ((fewer || outside) && places.size() == 1) {
    return absl::StrCat(BehindText(*places[0]), " in step ", places[0]->step() + 1,
                        ": it is in no collective, as others are");
  }
  return "";
}

// Of ranks that say nothing of themselves: the only one whose main thread is not in a call that
// waits for all, where the others are; nullptr where the stacks do not tell.
const v1::WorkerPlace* OutsideOfWaitingCalls(const Places& places, std::string* others_call) {
  const v1::WorkerPlace* outside = nullptr;
  for (const auto* place : places) {
    if (!ShowsMainThread(place->stack())) return nullptr;
    const std::string call = WaitingCall(place->stack());
    if (!call.empty()) {
      *others_call = call;
    } else if (outside == nullptr) {
      outside = place;
    } else {
      return nullptr;
    }
  }
  return others_call->empty() ? nullptr : outside;
}

}  // namespace

HangVerdict JudgeHang(const std::map<uint32_t, v1::WorkerPlace>& places, bool complete,
                      double hang_seconds) {
  Places all, still;
  for (const auto& [rank, place] : places) {
    all.push_back(&place);
    if (place.seconds_still() >= hang_seconds) still.push_back(&place);
  }
  HangVerdict verdict;
  if (still.empty()) {
    verdict.over = complete;
    verdict.reason = complete ? "every rank has moved again"
                              : "a node did not answer, so it cannot be told which rank is behind";
    return verdict;
  }
  const auto longer = [](const auto* a, const auto* b) {
    return a->seconds_still() > b->seconds_still();
  };
  verdict.seconds = (*std::min_element(still.begin(), still.end(), longer))->seconds_still();
  const bool speak =
      std::all_of(all.begin(), all.end(), [](const auto* place) { return place->speaks(); });
  std::string call;
  const auto* outside = speak ? nullptr : OutsideOfWaitingCalls(all, &call);
  if (outside != nullptr) {
    verdict.rank = outside->rank();
    verdict.seconds = outside->seconds_still();
    verdict.reason = absl::StrCat(BehindText(*outside), ": the others wait in ", call,
                                  ", to which it has not come");
    return verdict;
  }
  Places candidates = speak ? all : still;
  if (candidates.size() > 1 && speak) verdict.reason = NarrowByProgress(candidates);
  if (candidates.size() > 1) {
    std::sort(candidates.begin(), candidates.end(), longer);
    const double margin = speak ? kPageResolutionSeconds
                                : std::max(hang_seconds / kLooksPerTimeout, kLookMarginSeconds);
    const double first = candidates[0]->seconds_still(), second = candidates[1]->seconds_still();
    if (first - second > margin) {
      verdict.reason =
          absl::StrCat("rank ", candidates[0]->rank(), " has stood still the longest (",
                       Still(first), ", the next one ", Still(second), ")");
      candidates.erase(candidates.begin() + 1, candidates.end());
    }
  }
  if (candidates.size() > 1) {
    verdict.reason = absl::StrCat("it cannot be told which rank is behind: ", candidates.size(),
                                  speak ? " ranks stand at the same place" : " ranks stand still");
    return verdict;
  }
  verdict.rank = candidates[0]->rank();
  verdict.seconds = candidates[0]->seconds_still();
  if (verdict.reason.empty()) {
    verdict.reason =
        absl::StrCat("rank ", verdict.rank, " has not moved for ", Still(verdict.seconds));
    if (all.size() > 1) absl::StrAppend(&verdict.reason, ", while the others do");
  }
  return verdict;
}

}  // namespace ddprun::coordinator
