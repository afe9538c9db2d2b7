// Ends what a killed keeper left behind. The agent's process is a child subreaper and has no
// children but keepers and those of OwnChildren, so that every descendant found here is an orphan
// of a worker.
#pragma once

#include <cstdint>
#include <vector>

namespace ddprun::agent {

// Kills all descendants of this process and reaps them, again and again until none is left, for at
// most 10 s. Returns those that are still there then. REQUIRES: no keeper lives.
std::vector<int32_t> EndOrphans();

}  // namespace ddprun::agent
