// Which nodes take part in the next generation, and which ranks each holds. Pure.
//
// Rules: a node keeps its place where it can; wishes (--node-rank) come first; new nodes follow in
// the order in which they joined; ranks of a node are consecutive; nodes beyond `nodes_max` stay
// spares; nodes that are `left_out` (strikes.h) take no part.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/coordinator/state.h"

namespace ddprun::coordinator {

struct Assignment {
  std::vector<Placement> placements;  // empty: not enough nodes
  uint32_t world_size = 0;
  std::string reason;
};

Assignment AssignRanks(const v1::JobSpec& spec, const std::map<std::string, Node>& nodes,
                       const std::vector<Placement>& previous,
                       const std::set<std::string>& left_out = {});

}  // namespace ddprun::coordinator
