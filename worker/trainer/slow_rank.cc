#include "worker/trainer/slow_rank.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace ddprun {
namespace {

constexpr double kCostMin = 0.05;  // of the interval
constexpr int kRepeatIntervals = 10;

template <typename Part>
double LowerMedian(const std::vector<StepTimes>& by_rank, Part part) {
  std::vector<double> values;
  values.reserve(by_rank.size());
  for (const StepTimes& times : by_rank) values.push_back(part(times));
  const size_t middle = (values.size() - 1) / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(middle), values.end());
  return values[middle];
}

const SlowRank* Find(const std::vector<SlowRank>& ranks, int rank) {
  for (const SlowRank& slow : ranks) {
    if (slow.rank == rank) return &slow;
  }
  return nullptr;
}

}  // namespace

StepTimes& StepTimes::operator+=(const StepTimes& more) {
  data += more.data;
  compute += more.compute;
  wait += more.wait;
  return *this;
}

void AddTime(ActionKind kind, double seconds, double waited, StepTimes* times) {
  switch (kind) {
    case ActionKind::kLoad:
      times->data += seconds;
      return;
    case ActionKind::kForward:
    case ActionKind::kLoss:
    case ActionKind::kBackward:
      times->compute += seconds - waited;
      times->wait += waited;
      return;
    case ActionKind::kCount:
    case ActionKind::kReduce:
      times->wait += seconds;
      return;
    case ActionKind::kUpdate:
      return;
  }
}

std::vector<SlowRank> FindSlowRanks(const std::vector<StepTimes>& by_rank, double factor) {
  std::vector<SlowRank> slow;
  if (factor <= 0 || by_rank.size() < 2) return slow;
  const double own = LowerMedian(by_rank, [](const StepTimes& t) { return t.own(); });
  const double data = LowerMedian(by_rank, [](const StepTimes& t) { return t.data; });
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const StepTimes& times = by_rank[rank];
    const double excess = times.own() - own;
    if (times.own() <= factor * own || excess <= kCostMin * (times.own() + times.wait)) continue;
    slow.push_back({.rank = static_cast<int>(rank),
                    .factor = own > 0 ? times.own() / own : 0,
                    .by_data = times.data - data > excess / 2});
  }
  return slow;
}

std::vector<std::string> SlowRankNews::Update(int64_t step, const std::vector<StepTimes>& by_rank,
                                              double factor,
                                              const std::vector<std::string>& hosts) {
  std::vector<std::string> lines;
  const std::vector<SlowRank> now = FindSlowRanks(by_rank, factor);
  const bool repeat = !told_.empty() && --repeat_in_ <= 0;
  if (repeat) repeat_in_ = kRepeatIntervals;
  std::vector<SlowRank> told;
  for (const SlowRank& slow : now) {
    const bool known = Find(told_, slow.rank) != nullptr;
    if (!known && Find(before_, slow.rank) == nullptr) continue;
    told.push_back(slow);
    if (known && !repeat) continue;
    repeat_in_ = kRepeatIntervals;
    const StepTimes& times = by_rank[static_cast<size_t>(slow.rank)];
    lines.push_back(
        absl::StrFormat("step %d: rank %d on %s takes %.1f times as long for its part of a step as "
                        "the others, which "
                        "wait for it: %s (%.0f %% of its own time is spent waiting for data)",
                        step, slow.rank, hosts[static_cast<size_t>(slow.rank)], slow.factor,
                        slow.by_data ? "its data come late" : "it computes more slowly",
                        100 * times.data / times.own()));
  }
  for (const SlowRank& slow : told_) {
    if (Find(now, slow.rank) != nullptr) continue;
    lines.push_back(
        absl::StrFormat("step %d: rank %d is as fast as the others again", step, slow.rank));
  }
  told_ = std::move(told);
  before_ = now;
  return lines;
}

}  // namespace ddprun
