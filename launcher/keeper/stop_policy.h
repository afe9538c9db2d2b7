// When is whom told to leave, and when is whom killed: the keeper's decisions about stops as plain
// values. Pure: no I/O, no clock (now is an argument: nanoseconds of CLOCK_BOOTTIME); the keeper's
// loop performs the effects in order.
//
// Invariants:
//  1. An order never gets softer, and no deadline ever moves later (but for the lease's).
//  2. Once kSweeping, everything is killed again and again until no child is left (kGone) or the
//  limit is reached (kGiveUp).
//  3. kSweeping is reached from every state in bounded time after an order; without one as soon as
//  every worker has ended.
// "Orphans" are descendants whose worker has ended; they are children of the keeper, since it is a
// subreaper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddprun::keeper {

enum class StopMode { kNone, kStop, kAbort, kKill };  // ordered from soft to harsh

struct StopPolicy {
  int64_t grace_ns = 0;  // where the order does not say
  int64_t abort_ns = 500'000'000;
  int64_t unkillable_ns = 10'000'000'000;
  int64_t sweep_pause_min_ns = 1'000'000;  // doubles from sweep to sweep
  int64_t sweep_pause_max_ns = 100'000'000;
};

enum class WorkerPhase { kRunning, kTerminating, kKilled, kEnded };

struct WorkerStop {
  WorkerPhase phase = WorkerPhase::kRunning;
  bool said_hello = false;
  int64_t deadline_ns = 0;  // of kTerminating: KILL then
};

enum class TreePhase { kWatching, kSweeping, kGone };

inline constexpr int64_t kNever = INT64_MAX;

struct StopState {
  StopMode mode = StopMode::kNone;
  TreePhase tree = TreePhase::kWatching;
  std::vector<WorkerStop> workers;
  int64_t lease_deadline_ns = kNever;
  int64_t orphan_deadline_ns =
      0;  // orphans live until then under an order; 0: there are none, or they were killed
  int64_t sweep_began_ns = 0;
  int64_t sweep_next_ns = 0;
  int64_t sweep_pause_ns = 0;
};

enum class EventKind {
  kOrder,         // mode, duration_ns (grace; negative: the policy's)
  kHello,         // worker
  kWorkerEnded,   // worker
  kLease,         // duration_ns from now; 0: none
  kChildEnded,    // some orphan was reaped
  kChildrenGone,  // the keeper has no child any more
  kTimePassed,
};

struct StopEvent {
  EventKind kind = EventKind::kTimePassed;
  size_t worker = 0;
  StopMode mode = StopMode::kNone;
  int64_t duration_ns = -1;
};

enum class EffectKind {
  kTellLeaseExpired,
  kSendAbort,         // worker
  kTerminateWorker,   // worker: TERM to its main process
  kKillWorkerTree,    // worker: KILL to it and its descendants
  kTerminateOrphans,  // TERM to each orphan that has not had it
  kKillOrphans,
  kKillAll,  // every descendant of the keeper
  kGiveUp,   // name what could not be killed, then as kGone
  kGone,
};

struct Effect {
  EffectKind kind = EffectKind::kGone;
  size_t worker = 0;
};

// What to do when `event` happens at `now_ns`. Deadlines that have passed are dealt with before the
// event itself.
std::vector<Effect> Step(const StopPolicy& policy, StopState* state, const StopEvent& event,
                         int64_t now_ns);

// When kTimePassed is due next; kNever: only an event can change anything.
int64_t NextDeadline(const StopPolicy& policy, const StopState& state);

}  // namespace ddprun::keeper
