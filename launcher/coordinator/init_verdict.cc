#include "launcher/coordinator/init_verdict.h"

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace ddprun::coordinator {
namespace {

constexpr size_t kGroupsNamedMax = 8;
constexpr size_t kGroupRanksMax = 16;
constexpr size_t kCallBytesMax = 80;

// Calls in which a rank waits for all others: NCCL's, Gloo's and MPI's, and what PyTorch's
// programs see of them.
constexpr absl::string_view kWaitingCalls[] = {
    "ncclCommInit",
    "ncclCommSplit",
    "ncclTransport",
    "bootstrapInit",
    "ncclAll",
    "ncclBroadcast",
    "ncclReduce",
    "init_process_group",
    "store_based_barrier",
    "ProcessGroup",
    "all_reduce",
    "all_gather",
    "broadcast_object",
    "barrier (torch",
    "gloo::",
    "connectFullMesh",
    "MPI_Init",
    "MPI_Barrier",
    "MPI_Allreduce",
    "ddprun_exchange",
};

struct Standing {
  uint32_t rank = 0;
  bool waits = false;
  std::string where;
  const v1::WorkerPlace* place = nullptr;  // none: its node did not answer
};

// Background threads wait in such calls all the time: only the main one counts (py-spy and gdb name
// it; the kernel's own facts hold no such calls). Empty: it was not seen.
absl::string_view MainThread(absl::string_view stack) {
  constexpr absl::string_view kHeader = "\nThread ";
  size_t begin = absl::StartsWith(stack, kHeader.substr(1)) ? 0 : stack.find(kHeader);
  while (begin != absl::string_view::npos) {
    if (stack[begin] == '\n') ++begin;
    const size_t end = stack.find(kHeader, begin);
    const absl::string_view thread = stack.substr(begin, end - begin);
    const absl::string_view header = thread.substr(0, thread.find('\n'));
    if (absl::StartsWith(header, "Thread 1 (") || absl::StrContains(header, "\"MainThread\"")) {
      return thread;
    }
    begin = end;
  }
  return "";
}

// The innermost such call of the main thread; "": none.
std::string WaitingCall(absl::string_view stack) {
  stack = MainThread(stack);
  size_t first = absl::string_view::npos, length = 0;
  for (const absl::string_view call : kWaitingCalls) {
    const size_t at = stack.find(call);
    if (at < first) first = at, length = call.size();
  }
  if (first == absl::string_view::npos) return "";
  const auto of_name = [&](size_t i) {
    const unsigned char c = static_cast<unsigned char>(stack[i]);
    return std::isalnum(c) != 0 || c == '_' || c == ':';
  };
  size_t begin = first, end = first + length;
  while (begin > 0 && of_name(begin - 1)) --begin;
  while (end < stack.size() && of_name(end)) ++end;
  return std::string(stack.substr(begin, std::min(end - begin, kCallBytesMax)));
}

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
