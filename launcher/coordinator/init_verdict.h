// Which rank keeps the others from being ready (L65), judged by where each one stands. Pure.
//
// Rule: who waits for others is not behind: a rank that is in a collective, or connecting, by its
// step page or by the calls on its stack. Of the rest that are not ready, those that use libddprun
// are told apart by the collectives they have finished, then started. Where all wait, the one that
// is a collective behind is named; else the reason says where they wait and that it cannot be told.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "ddprun/v1/agent.pb.h"

namespace ddprun::coordinator {

struct InitVerdict {
  int64_t rank = -1;   // behind; −1: it cannot be told
  std::string reason;  // where the ranks stand; "": nothing is known
};

// `missing`: the living ranks that are not ready. `places`: of living workers, by rank; a rank
// whose node did not answer has none.
InitVerdict JudgeInit(const std::set<uint32_t>& missing,
                      const std::map<uint32_t, v1::WorkerPlace>& places);

}  // namespace ddprun::coordinator
