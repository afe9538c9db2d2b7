#include "launcher/keeper/tree_kill.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "common/process_tree.h"

namespace ddprun::keeper {

void KillWithGroups(const std::vector<pid_t>& pids, std::span<const pid_t> spare) {
  const pid_t own_group = getpgrp();
  pid_t last_group = 0;  // neighbours in the list mostly share one
  for (pid_t pid : pids) {
    const pid_t group = getpgid(pid);
    const bool spared = std::find(spare.begin(), spare.end(), group) != spare.end();
    if (group > 1 && group != own_group && group != last_group && !spared) kill(-group, SIGKILL);
    last_group = group;
    kill(pid, SIGKILL);
  }
}

void KillWorkerTree(pid_t main_pid) {
  std::vector<pid_t> tree = ListDescendants(main_pid);
  tree.push_back(main_pid);
  KillWithGroups(tree, {});
}

std::vector<pid_t> ListOrphans(std::span<const pid_t> mains) {
  return ListDescendants(getpid(), mains);
}

}  // namespace ddprun::keeper
