// Ranks that are slower than the others. In a step all wait for the slowest one, so the time of a
// step says nothing about a rank; what it spends itself does: waiting for its data, and computing
// until its last gradients are handed over. What it waits for peers then, or on CPUs in SyncBN
// before, is not counted. (On GPUs SyncBN waits on the device, unseen by the host: with it, a slow
// rank cannot be told there.)
// Pure but for the clock that callers read. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/trainer/plan.h"

namespace ddprun {

// Of one rank, in seconds, over some updates.
struct StepTimes {
  double data = 0;     // waiting for the loader
  double compute = 0;  // forward and backward
  double wait = 0;     // for the others: for their gradients, on CPUs also in SyncBN
  double own() const { return data + compute; }
  StepTimes& operator+=(const StepTimes& more);
};

// Adds the time of one action of an update to its part; `waited` of it for others, in SyncBN.
void AddTime(ActionKind kind, double seconds, double waited, StepTimes* times);

struct SlowRank {
  int rank = 0;
  double factor = 0;     // its own time against the median of all ranks
  bool by_data = false;  // what it lost, it lost in waiting for data; else in computing
  bool operator==(const SlowRank&) const = default;
};

// Those whose own time is more than `factor` times the median (of two ranks: the faster one), if
// that costs more than a twentieth of the interval: unequal parts of next to nothing are no news.
std::vector<SlowRank> FindSlowRanks(const std::vector<StepTimes>& by_rank, double factor);

// What to tell, and when: a slow rank once it was slow in two intervals in a row, and once more
// when it no longer is. One that stays slow is said again after 10 intervals.
class SlowRankNews {
 public:
  // Lines to print after an interval that ended at `step`. `hosts` by rank.
  std::vector<std::string> Update(int64_t step, const std::vector<StepTimes>& by_rank,
                                  double factor, const std::vector<std::string>& hosts);
  // Told as slow.
  const std::vector<SlowRank>& told() const { return told_; }

 private:
  std::vector<SlowRank> before_;  // of the interval before
  std::vector<SlowRank> told_;
  int repeat_in_ = 0;
};

}  // namespace ddprun
