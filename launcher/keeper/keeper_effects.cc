// Decisions of the stop policy, and the system calls that carry them out.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "common/packet.h"
#include "common/process_tree.h"
#include "launcher/keeper/clock.h"
#include "launcher/keeper/keeper.h"
#include "launcher/keeper/tree_kill.h"

namespace ddprun::keeper {

void Keeper::Decide(const StopEvent& event) {
  for (const Effect& effect : Step(policy_, &state_, event, Now())) Perform(effect);
  if (state_.mode == StopMode::kNone || hang_watch_.over()) return;
  hang_watch_.End();
  PlanNextLook();
  if (paused_) ContinueAll();
}

void Keeper::Perform(const Effect& effect) {
  switch (effect.kind) {
    case EffectKind::kTellLeaseExpired:
      agent_.Send(PacketWriter("LeaseExpired").Integer("TIME_NS", RealNs()).Finish());
      return;
    case EffectKind::kSendAbort:
      workers_[effect.worker].Send(PacketWriter("Abort").Text("REASON", stop_reason_).Finish());
      return;
    case EffectKind::kTerminateWorker:
      workers_[effect.worker].Signal(SIGTERM);
      workers_[effect.worker].Signal(SIGCONT);  // one that somebody has stopped could not take it
      return;
    case EffectKind::kKillWorkerTree:
      if (workers_[effect.worker].alive()) KillWorkerTree(workers_[effect.worker].pid());
      return;
    case EffectKind::kTerminateOrphans:
      TerminateOrphans();
      return;
    case EffectKind::kKillOrphans: {
      const std::vector<pid_t> mains = LivingMains();
      KillWithGroups(ListOrphans(mains), mains);
      return;
    }
    case EffectKind::kKillAll:
      KillWithGroups(ListDescendants(getpid()), {});
      return;
    case EffectKind::kGiveUp:
      GiveUp();
      return;
    case EffectKind::kGone:
      for (Worker& worker : workers_) worker.CloseLog(&agent_);
      agent_.Send(PacketWriter("Gone").Finish());
      return;
  }
}

void Keeper::TerminateOrphans() {
  for (pid_t pid : ListOrphans(LivingMains())) {
    if (terminated_.insert(pid).second) kill(pid, SIGTERM);
  }
}

void Keeper::GiveUp() {
  std::string pids;
  for (pid_t pid : ListDescendants(getpid())) {
    PacketWriter packet("Unkillable");
    packet.Integer("PID", pid);
    for (const Worker& worker : workers_) {
      if (worker.pid() == pid || worker.pid() == getpgid(pid))
        packet.Integer("RANK", worker.rank());
    }
    agent_.Send(packet.Finish());
    if (!pids.empty()) pids += ' ';
    pids += std::to_string(pid);
  }
  for (Worker& worker : workers_) worker.CloseLog(&agent_);
  agent_.Send(PacketWriter("Gone").Text("PIDS", pids).Finish());
}

void Keeper::ReapOrphans() {
  bool reaped = false;
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0) {
      if (errno == EINTR) continue;
      if (errno == ECHILD) Decide({EventKind::kChildrenGone});
      return;
    }
    // Workers are reaped through their pidfd, after what they said; this one's is readable now and
    // comes next.
    if (info.si_pid == 0 || IsLivingMain(info.si_pid)) break;
    waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG | __WALL);
    terminated_.erase(info.si_pid);
    reaped = true;
  }
  if (reaped) Decide({EventKind::kChildEnded});
}

std::vector<pid_t> Keeper::LivingMains() const {
  std::vector<pid_t> mains;
  for (const Worker& worker : workers_) {
    if (worker.alive()) mains.push_back(worker.pid());
  }
  return mains;
}

bool Keeper::IsLivingMain(pid_t pid) const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [pid](const Worker& worker) { return worker.alive() && worker.pid() == pid; });
}

}  // namespace ddprun::keeper
