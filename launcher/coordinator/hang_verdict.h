// Which rank holds up the others, judged by where each one stands. Pure.
//
// Rule: of ranks that use libddprun the one behind is that of the smallest step; among those the
// one that has finished, then started, the fewest collectives; then the one that is in none; then
// the one that has stood still for longest. Of other programs' ranks only the stillness
// is known, and the stacks: the one that is in no call that waits for all, where the others are.
// Where that names nobody, the reason says so.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ddprun/v1/agent.pb.h"

namespace ddprun::coordinator {

struct HangVerdict {
  bool over = false;   // every rank has moved again
  int64_t rank = -1;   // behind; −1: it cannot be told
  double seconds = 0;  // for which it (or, without one, the longest) has stood still
  std::string reason;
};

// `places`: of the living workers, by rank. `complete`: every node has answered.
HangVerdict JudgeHang(const std::map<uint32_t, v1::WorkerPlace>& places, bool complete,
                      double hang_seconds);

}  // namespace ddprun::coordinator
