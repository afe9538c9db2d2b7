#include "launcher/keeper/keeper.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/packet.h"
#include "common/process_tree.h"
#include "launcher/keeper/clock.h"

namespace ddprun::keeper {
namespace {

// Shares of one worker in one wake-up, so that none starves the others.
constexpr int kPacketsPerWakeUp = 64;
constexpr size_t kLogBytesPerWakeUp = 8 * kLogChunkBytes;
constexpr int kPacketsAtExitMax = 4096;  // a dead worker's queue is shorter (its socket buffer)
constexpr int64_t kLastFlushNs = 60 * kSecond;
// It takes milliseconds, and nothing else is looked at meanwhile.
constexpr int64_t kPreloadedStartNs = 2 * kSecond;
constexpr int64_t kPreloadedEndNs = 10 * kSecond;

}  // namespace

Keeper::Keeper(const Spec* spec, const StartContext& context, Poller* poller, Fd control,
               Preloader preloader)
    : spec_(spec),
      context_(context),
      poller_(poller),
      agent_(std::move(control), poller),
      preloader_(std::move(preloader)),
      hang_watch_(spec->workers.size(), spec->hang_ms * kMillisecond, MonotonicNs()) {
  policy_.grace_ns = spec->grace_ms * kMillisecond;
  state_.workers.resize(spec->workers.size());
  if (spec->lease_until_ns > 0) state_.lease_deadline_ns = spec->lease_until_ns;
  workers_.reserve(spec->workers.size());
  for (const WorkerSpec& worker : spec->workers) {
    workers_.emplace_back(&worker, workers_.size(), poller);
  }
}

void Keeper::Run() {
  StartAll();
  PlanNextLook();
  while (state_.tree != TreePhase::kGone) {
    UpdateInterest();
    Handle(poller_->Wait(std::min(NextDeadline(policy_, state_), next_look_ns_)));
  }
  Finish();
}

// None of them runs a line of the program before all are there. A preloader that cannot do it
// leaves nothing behind, and the workers are started afresh.
bool Keeper::StartAllPreloaded() {
  bool well = true;
  for (Worker& worker : workers_) well = well && worker.Ask(context_, preloader_);
  const int64_t deadline_ns = BootNs() + kPreloadedStartNs;
  for (Worker& worker : workers_) well = well && worker.AwaitPreloaded(deadline_ns);
  if (well) {
    for (Worker& worker : workers_) worker.Go();
    for (Worker& worker : workers_) worker.Watch();
  }
  preloader_.End();
  if (well) return true;
  fprintf(stderr, "ddprun-keeper: the preloaded start failed; the workers are started afresh\n");
  for (Worker& worker : workers_) worker.Forget();
  while (!KillDescendants(getpid()).empty()) {
    while (waitpid(-1, nullptr, WNOHANG | __WALL) > 0) continue;
    if (BootNs() > deadline_ns + kPreloadedEndNs) break;
    poll(nullptr, 0, 1);
  }
  return false;
}

// Where the lease has run out (this process may have been stopped before), nothing starts any more.
void Keeper::StartAll() {
  if (preloader_.running() && !LeaseHolds()) preloader_.End();
  if (preloader_.running() && StartAllPreloaded()) return ReapOrphans();
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!LeaseHolds() || !workers_[i].Start(context_, &agent_)) {
      Decide({EventKind::kWorkerEnded, i});
    }
  }
  ReapOrphans();
}

bool Keeper::LeaseHolds() {
  Decide({EventKind::kTimePassed});
  return state_.tree == TreePhase::kWatching;
}

void Keeper::Handle(std::span<const Ready> ready) {
  const int64_t wake_up_ns = RealNs();  // when all of this was noticed; taken before any work
  std::vector<size_t> exits;
  bool signals = false;
  bool agent = false;
  for (const Ready& entry : ready) {
    if (entry.source == Source::kExit) exits.push_back(entry.worker);
    signals = signals || entry.source == Source::kSignals;
    agent = agent || entry.source == Source::kAgent;
  }
  // First of all, so that a Lease which waited while this process was stopped cannot revive one
  // that has run out.
  Decide({EventKind::kTimePassed});
  if (agent) ReadAgent();
  if (signals && poller_->TakeTerminate()) {
    stop_reason_ = "the keeper was told to terminate";
    Decide({.kind = EventKind::kOrder, .mode = StopMode::kKill});
  }
  for (Source source : {Source::kStartPipe, Source::kSocket, Source::kLog}) {
    for (const Ready& entry : ready) {
      if (entry.source != source) continue;
      if (source == Source::kStartPipe) workers_[entry.worker].ReadStartPipe(&agent_, wake_up_ns);
      if (source == Source::kSocket) ReadPackets(entry.worker, kPacketsPerWakeUp);
      if (source == Source::kLog) PumpLog(entry.worker);
    }
  }
  HandleExits(exits, wake_up_ns);
  if (signals || !exits.empty() || state_.tree == TreePhase::kSweeping) ReapOrphans();
  NoticeAgentGone();
  // Last, when all that came meanwhile has been read.
  if (Now() >= next_look_ns_) LookForHangs();
}

void Keeper::HandleExits(const std::vector<size_t>& exits, int64_t first_ns) {
  for (size_t i : exits) {
    workers_[i].ReadStartPipe(&agent_, first_ns);
    ReadPackets(i, kPacketsAtExitMax);
  }
  for (size_t i : exits) workers_[i].DrainLog(&agent_);
  int64_t time_ns = first_ns;
  for (size_t i : exits) {
    // epoll names them in the order of their deaths; the times keep it.
    workers_[i].ReapAndTell(&agent_, time_ns++);
    Decide({EventKind::kWorkerEnded, i});
  }
}

void Keeper::ReadAgent() {
  agent_.Flush();
  std::string_view packet;
  while (agent_.Receive(&packet) == AgentLink::Received::kPacket) Obey(packet);
  NoticeAgentGone();
}

void Keeper::ReadPackets(size_t worker, int packets_max) {
  workers_[worker].FlushPackets();
  if (workers_[worker].ReadPackets(&agent_, packets_max)) Decide({EventKind::kHello, worker});
}

void Keeper::PumpLog(size_t worker) {
  workers_[worker].PumpLog(&agent_, kLogBytesPerWakeUp);
}

void Keeper::UpdateInterest() {
  if (agent_.connected() && agent_.wants_write() != agent_wants_write_) {
    agent_wants_write_ = agent_.wants_write();
    poller_->WantWrite(agent_.fd(), Source::kAgent, 0, agent_wants_write_);
  }
  for (Worker& worker : workers_) worker.UpdateInterest();
}

void Keeper::Finish() {
  agent_.FlushBefore(BootNs() + kLastFlushNs);
  // What the agent said too late is read all the same: unread, it would turn the end of file that
  // follows into an error.
  std::string_view ignored;
  while (agent_.Receive(&ignored) == AgentLink::Received::kPacket) {
  }
}

}  // namespace ddprun::keeper
