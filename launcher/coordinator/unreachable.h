// Whose fault it is that a node did not get fit for a generation: its own, or that of another node
// whose address nobody reaches. Pure.
//
// A node that cannot reach another one's address accuses that one. The accused node goes for good:
// it would stop the next generation, too, while those that told so are well. The first accusation
// counts: what a node says that is accused itself is not heard. Rank 0's node is tried by all
// others; where as many of them have started their workers as have failed to reach it, these have
// the trouble, and are unhealthy themselves.
#pragma once

#include <map>
#include <string>

#include "launcher/coordinator/state.h"

namespace ddprun::coordinator {

struct HealthVerdict {
  std::map<std::string, std::string> unfit;  // node → why: a strike against it
  std::map<std::string, std::string> away;   // node → why: it is sent away
};
HealthVerdict JudgeHealth(const State& state);

// The member that advertises this address, other than `reporter`; "" where there is none.
std::string AccusedNode(const State& state, const std::string& reporter,
                        const std::string& address);
// This node has told that it cannot reach another one.
bool Accuses(const Generation& generation, const std::string& node);
// Another node tries the same address, and has neither failed nor started its workers.
bool OthersStillTry(const Generation& generation, const std::string& accused);

}  // namespace ddprun::coordinator
