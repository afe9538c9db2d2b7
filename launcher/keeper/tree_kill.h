// The signals of the stop policy, sent to trees of processes. Threads: the keeper's alone (it
// remembers nothing).
#pragma once

#include <sys/types.h>

#include <span>
#include <vector>

namespace ddprun::keeper {

// SIGKILL to each of the processes and to their process groups: the kernel kills a group in one go,
// which nothing that forks inside it can outrun. Groups of `spare` and of the caller are left
// alone.
void KillWithGroups(const std::vector<pid_t>& pids, std::span<const pid_t> spare);

// The main process of a worker (also leader of its group) and all its descendants.
void KillWorkerTree(pid_t main_pid);

// Every descendant of the calling process that is not below one of `mains`.
std::vector<pid_t> ListOrphans(std::span<const pid_t> mains);

}  // namespace ddprun::keeper
