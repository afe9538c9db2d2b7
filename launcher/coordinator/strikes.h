// Which nodes are left out for a while because too many failures came from them (L29, D8). Pure.
//
// Rules: a failure whose root cause lies on a node is a strike against it; at `node_strikes_limit`
// strikes (a failed health check counts as all of them) the node is left out for
// `node_cooldown_seconds`, twice as long each further time, at most an hour. Strikes older than the
// restart window are forgotten. A node without which fewer than MIN would be here is not left out,
// since waiting for it would help nobody.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "launcher/coordinator/state.h"

namespace ddprun::coordinator {

constexpr double kCooldownSecondsMax = 3600;

enum class StrikeResult {
  kCounted,  // or not wanted at all (limit 0)
  kLeftOut,
  kKept,  // the limit is reached, but the job needs it
};

// One failure of this node. `whole`: its health check failed.
StrikeResult Strike(State& state, const std::string& node, bool whole);
// Leaves it out at once, for the longest time, whatever the limit says.
void LeaveOut(State& state, const std::string& node);
// Lets in whose cool-down is over; returns their names.
std::vector<std::string> LetIn(State& state);

std::set<std::string> LeftOut(const State& state);
// When the next cool-down ends; 0: no node is left out.
int64_t NextLetInNs(const State& state);
// Attached and not about to leave.
bool MayTakePart(const Node& node);
// Those of them that are not left out, without `but`.
size_t UsableNodes(const State& state, const std::string& but = "");

}  // namespace ddprun::coordinator
