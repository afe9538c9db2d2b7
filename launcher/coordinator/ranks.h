// Which nodes take part in the next generation, and which ranks each holds. Pure.
//
// Rules: members of the generation before take part first, then nodes with a wish (--node-rank),
// then the others in the order in which they joined; nodes beyond `nodes_max` stay spares; nodes
// that are `left_out` (strikes.h), leave or are not attached take no part. Among those that do,
// each has the place that it wishes, else the one that it had, else what is left: a newcomer takes
// the place of a lost node, and the others' ranks stay where their counts are equal. Ranks of a
// node are consecutive.
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
