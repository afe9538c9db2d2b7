#include "launcher/agent/orphans.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/own_children.h"
#include "common/process_tree.h"

namespace ddprun::agent {
namespace {
constexpr int kRoundsMax = 5000;  // of 2 ms: 10 s
constexpr long kRoundNs = 2'000'000;
}  // namespace

std::vector<int32_t> EndOrphans() {
  std::vector<pid_t> left;
  for (int round = 0; round < kRoundsMax; ++round) {
    // Reaped by name: waiting for any child would take those that others wait for.
    left = KillDescendants(getpid(), OwnChildren::Get().List());
    if (left.empty()) return {};
    for (pid_t pid : left) waitpid(pid, nullptr, WNOHANG | __WALL);
    const timespec pause = {0, kRoundNs};
    nanosleep(&pause, nullptr);
  }
  return {left.begin(), left.end()};
}

}  // namespace ddprun::agent
