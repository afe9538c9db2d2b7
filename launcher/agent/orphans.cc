#include "launcher/agent/orphans.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "common/process_tree.h"

namespace ddprun::agent {
namespace {
constexpr int kRoundsMax = 5000;  // of 2 ms: 10 s
constexpr long kRoundNs = 2'000'000;
}  // namespace

std::vector<int32_t> EndOrphans() {
  std::vector<pid_t> left;
  for (int round = 0; round < kRoundsMax; ++round) {
    left = KillDescendants(getpid());
    pid_t reaped = 0;
    while ((reaped = waitpid(-1, nullptr, WNOHANG | __WALL)) > 0) continue;
    if (reaped < 0 && errno == ECHILD) return {};
    const timespec pause = {0, kRoundNs};
    nanosleep(&pause, nullptr);
  }
  return {left.begin(), left.end()};
}

}  // namespace ddprun::agent
