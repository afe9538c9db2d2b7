// Who stands still and where, and pauses.
#include <unistd.h>

#include <csignal>

#include "common/packet.h"
#include "common/process_tree.h"
#include "launcher/keeper/clock.h"
#include "launcher/keeper/keeper.h"

namespace ddprun::keeper {
namespace {

constexpr int kStopRoundsMax = 64;  // a tree that forks meanwhile is looked at again

int64_t Milliseconds(int64_t ns) {
  return ns / kMillisecond;
}

}  // namespace

int64_t Keeper::Now() const {
  return spec_->lease_monotonic ? MonotonicNs() : BootNs();
}

void Keeper::PlanNextLook() {
  next_look_ns_ = hang_watch_.on() ? Now() + hang_watch_.interval_ns() : kNever;
}

std::vector<std::optional<StepPageContent>> Keeper::ReadPages() const {
  std::vector<std::optional<StepPageContent>> pages(workers_.size());
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].said_hello()) pages[i] = workers_[i].page().Read();
  }
  return pages;
}

std::vector<Standstill> Keeper::Look(const std::vector<std::optional<StepPageContent>>& pages) {
  std::vector<WorkerFacts> facts(workers_.size());
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (!worker.runs()) continue;
    facts[i] = {.runs = true,
                .held = IsHeldByDebugger(worker.pid()),
                .page = pages[i] ? &*pages[i] : nullptr,
                .output_bytes = worker.output_bytes(),
                .cpu_ns = TreeCpuNs(worker.pid())};
  }
  return hang_watch_.Look(facts, MonotonicNs());
}

void Keeper::LookForHangs() {
  const auto pages = ReadPages();
  for (const Standstill& still : Look(pages)) {
    PacketWriter packet("Stalled");
    packet.Integer("RANK", workers_[still.worker].rank())
        .Number("SECONDS", static_cast<double>(still.still_ns) / kSecond);
    if (pages[still.worker]) AddPage(*pages[still.worker], &packet);
    agent_.Send(packet.Finish());
  }
  PlanNextLook();
}

void Keeper::TellPlaces() {
  const auto pages = ReadPages();
  const std::vector<Standstill> found = Look(pages);
  const int64_t now_ns = MonotonicNs();
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    PacketWriter packet("Places");
    packet.Integer("RANK", worker.rank())
        .Integer("PID", worker.runs() ? worker.pid() : 0)
        .Integer("SPEAKS", pages[i] ? 1 : 0)
        .Integer("STILL_MS", Milliseconds(hang_watch_.StillNs(i, now_ns)));
    if (pages[i]) AddPage(*pages[i], &packet);
    agent_.Send(packet.Finish());
  }
  agent_.Send(PacketWriter("Examined").Finish());
}

void Keeper::PassSignal(int number) {
  if (number == SIGSTOP) {
    // Under an order to leave they are not held up.
    if (state_.mode == StopMode::kNone) StopAll();
  } else if (number == SIGCONT) {
    ContinueAll();
  } else {
    for (Worker& worker : workers_) worker.PassSignal(&agent_, number);
  }
  agent_.Send(PacketWriter("Signalled").Integer("NUMBER", number).Finish());
}

void Keeper::StopAll() {
  paused_ = true;
  hang_watch_.Pause();
  PlanNextLook();
  std::unordered_set<pid_t> stopped;
  for (int round = 0; round < kStopRoundsMax; ++round) {
    bool fresh = false;
    for (pid_t pid : ListDescendants(getpid())) {
      if (!stopped.insert(pid).second) continue;
      kill(pid, SIGSTOP);
      fresh = true;
    }
    if (!fresh) return;
  }
}

void Keeper::ContinueAll() {
  for (pid_t pid : ListDescendants(getpid())) kill(pid, SIGCONT);
  paused_ = false;
  hang_watch_.Continue(MonotonicNs());
  PlanNextLook();
}

}  // namespace ddprun::keeper
