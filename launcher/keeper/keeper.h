// Keeper: the loop of ddprun-keeper. Waits, reads what came, asks the stop policy what to do, and
// does it.
//
// Threads: one. Every wake-up runs in this order: note who died and when; deadlines; the agent's
// orders; start reports; worker packets; output; exits in the order of their deaths; orphans; then
// all effects are done and the loop sleeps again. Invariants:
//  1. Exited of a worker comes after all that it said and wrote before its death.
//  2. Gone is the last packet, and comes only when waitid says that no child is left, or with the
//  PIDs that would not die.
//  3. Each worker has exactly one end: StartFailed or Exited; none where the lease ended before its
//  start.
//  4. Nothing here blocks but a write to a log file.
//  5. A paused worker is continued before it is told to leave.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "launcher/keeper/agent_link.h"
#include "launcher/keeper/hang_watch.h"
#include "launcher/keeper/poller.h"
#include "launcher/keeper/preloader.h"
#include "launcher/keeper/spec.h"
#include "launcher/keeper/stop_policy.h"
#include "launcher/keeper/worker.h"

namespace ddprun::keeper {

class Keeper {
 public:
  // REQUIRES: *poller is open; the spec outlives the keeper. A preloader that runs is used for the
  // start, and ended.
  Keeper(const Spec* spec, const StartContext& context, Poller* poller, Fd control,
         Preloader preloader = {});

  // Starts all workers, and returns when they and their descendants are gone and the agent has been
  // told.
  void Run();

 private:
  // One wake-up.
  void StartAll();
  bool StartAllPreloaded();
  bool LeaseHolds();
  void Handle(std::span<const Ready> ready);
  void HandleExits(const std::vector<size_t>& exits, int64_t first_ns);
  void ReadAgent();
  void ReadPackets(size_t worker, int packets_max);
  void PumpLog(size_t worker);
  void UpdateInterest();
  void Finish();

  // One packet of the agent (keeper_agent.cc).
  void Obey(std::string_view bytes);
  void NoticeAgentGone();

  // Standstills, examinations, pauses (keeper_watch.cc).
  void LookForHangs();
  std::vector<std::optional<StepPageContent>> ReadPages() const;
  std::vector<Standstill> Look(const std::vector<std::optional<StepPageContent>>& pages);
  void PlanNextLook();
  void TellPlaces();
  void PassSignal(int number);
  void StopAll();
  void ContinueAll();

  // On the clock that deadlines are counted on.
  int64_t Now() const;
  // Decisions and what follows from them (keeper_effects.cc).
  void Decide(const StopEvent& event);
  void Perform(const Effect& effect);
  void TerminateOrphans();
  void GiveUp();
  void ReapOrphans();
  std::vector<pid_t> LivingMains() const;
  bool IsLivingMain(pid_t pid) const;

  const Spec* spec_;
  StartContext context_;
  Poller* poller_;
  AgentLink agent_;
  Preloader preloader_;
  bool agent_seen_gone_ = false;
  bool agent_wants_write_ = false;
  std::vector<Worker> workers_;
  StopPolicy policy_;
  StopState state_;
  std::string stop_reason_;
  HangWatch hang_watch_;
  int64_t next_look_ns_ = kNever;  // on Now's clock
  bool paused_ = false;            // all processes of the workers are stopped, until told otherwise
  std::unordered_set<pid_t> terminated_;  // orphans that have had their TERM
};

}  // namespace ddprun::keeper
