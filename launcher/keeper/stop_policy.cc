#include "launcher/keeper/stop_policy.h"

#include <algorithm>

namespace ddprun::keeper {
namespace {

using Effects = std::vector<Effect>;

void BeginSweeping(const StopPolicy& policy, StopState* state, int64_t now_ns, Effects* effects) {
  if (state->tree != TreePhase::kWatching) return;
  state->tree = TreePhase::kSweeping;
  state->lease_deadline_ns = kNever;
  state->orphan_deadline_ns = 0;
  state->sweep_began_ns = now_ns;
  state->sweep_pause_ns = policy.sweep_pause_min_ns;
  state->sweep_next_ns = now_ns + state->sweep_pause_ns;
  for (WorkerStop& worker : state->workers) {
    if (worker.phase != WorkerPhase::kEnded) worker.phase = WorkerPhase::kKilled;
  }
  effects->push_back({EffectKind::kKillAll});
}

// Nobody is left whom grace could help: the rest is killed.
void SweepIfNobodyIsWaitedFor(const StopPolicy& policy, StopState* state, int64_t now_ns,
                              Effects* effects) {
  for (const WorkerStop& worker : state->workers) {
    if (worker.phase == WorkerPhase::kRunning || worker.phase == WorkerPhase::kTerminating) return;
  }
  if (state->orphan_deadline_ns != 0) return;
  BeginSweeping(policy, state, now_ns, effects);
}

void Order(const StopPolicy& policy, StopState* state, const StopEvent& order, int64_t now_ns,
           Effects* effects) {
  if (state->tree != TreePhase::kWatching || order.mode < state->mode) return;
  const StopMode before = state->mode;
  state->mode = order.mode;
  if (order.mode == StopMode::kKill) {
    BeginSweeping(policy, state, now_ns, effects);
    return;
  }
  // Those of workers that ended by themselves; before any TERM, whose orphans get their grace.
  if (before == StopMode::kNone) effects->push_back({EffectKind::kKillOrphans});
  const int64_t grace_ns = order.duration_ns >= 0 ? order.duration_ns : policy.grace_ns;
  for (size_t i = 0; i < state->workers.size(); ++i) {
    WorkerStop& worker = state->workers[i];
    if (worker.phase != WorkerPhase::kRunning && worker.phase != WorkerPhase::kTerminating)
      continue;
    const bool abort = order.mode == StopMode::kAbort && worker.said_hello;
    const int64_t deadline_ns = now_ns + (abort ? policy.abort_ns : grace_ns);
    const bool running = worker.phase == WorkerPhase::kRunning;
    worker.deadline_ns = running ? deadline_ns : std::min(worker.deadline_ns, deadline_ns);
    worker.phase = WorkerPhase::kTerminating;
    if (abort && before != StopMode::kAbort) {
      effects->push_back({EffectKind::kSendAbort, i});
    } else if (running) {
      effects->push_back({EffectKind::kTerminateWorker, i});
    }
  }
  if (state->orphan_deadline_ns != 0) {
    state->orphan_deadline_ns = std::min(state->orphan_deadline_ns, now_ns + grace_ns);
  }
}

void WorkerEnded(StopState* state, size_t index, int64_t now_ns, Effects* effects) {
  WorkerStop& worker = state->workers[index];
  const WorkerPhase before = worker.phase;
  worker.phase = WorkerPhase::kEnded;
  if (state->tree != TreePhase::kWatching || before != WorkerPhase::kTerminating) return;
  if (worker.deadline_ns > now_ns) {
    state->orphan_deadline_ns = std::max(state->orphan_deadline_ns, worker.deadline_ns);
    effects->push_back({EffectKind::kTerminateOrphans});
  }
}

void PassTime(const StopPolicy& policy, StopState* state, int64_t now_ns, Effects* effects) {
  if (state->tree == TreePhase::kSweeping) {
    if (now_ns >= state->sweep_began_ns + policy.unkillable_ns) {
      state->tree = TreePhase::kGone;
      effects->push_back({EffectKind::kGiveUp});
    } else if (now_ns >= state->sweep_next_ns) {
      state->sweep_pause_ns = std::min(2 * state->sweep_pause_ns, policy.sweep_pause_max_ns);
      state->sweep_next_ns = now_ns + state->sweep_pause_ns;
      effects->push_back({EffectKind::kKillAll});
    }
    return;
  }
  if (now_ns >= state->lease_deadline_ns) {
    state->mode = StopMode::kKill;
    effects->push_back({EffectKind::kTellLeaseExpired});
    BeginSweeping(policy, state, now_ns, effects);
    return;
  }
  for (size_t i = 0; i < state->workers.size(); ++i) {
    WorkerStop& worker = state->workers[i];
    if (worker.phase != WorkerPhase::kTerminating || now_ns < worker.deadline_ns) continue;
    worker.phase = WorkerPhase::kKilled;
    effects->push_back({EffectKind::kKillWorkerTree, i});
  }
  if (state->orphan_deadline_ns != 0 && now_ns >= state->orphan_deadline_ns) {
    state->orphan_deadline_ns = 0;
    effects->push_back({EffectKind::kKillOrphans});
  }
}

}  // namespace

std::vector<Effect> Step(const StopPolicy& policy, StopState* state, const StopEvent& event,
                         int64_t now_ns) {
  Effects effects;
  if (state->tree == TreePhase::kGone) return effects;
  PassTime(policy, state, now_ns, &effects);
  if (state->tree == TreePhase::kGone) return effects;
  switch (event.kind) {
    case EventKind::kOrder:
      Order(policy, state, event, now_ns, &effects);
      PassTime(policy, state, now_ns, &effects);  // a grace of 0 ends at once
      break;
    case EventKind::kHello:
      state->workers[event.worker].said_hello = true;
      break;
    case EventKind::kWorkerEnded:
      WorkerEnded(state, event.worker, now_ns, &effects);
      break;
    case EventKind::kLease:
      if (state->tree == TreePhase::kWatching) {
        state->lease_deadline_ns = event.duration_ns == 0 ? kNever : now_ns + event.duration_ns;
      }
      break;
    case EventKind::kChildEnded:
      if (state->tree == TreePhase::kSweeping) effects.push_back({EffectKind::kKillAll});
      break;
    case EventKind::kChildrenGone: {
      const bool ended =
          std::all_of(state->workers.begin(), state->workers.end(),
                      [](const WorkerStop& worker) { return worker.phase == WorkerPhase::kEnded; });
      if (!ended) break;
      state->tree = TreePhase::kGone;
      effects.push_back({EffectKind::kGone});
      return effects;
    }
    case EventKind::kTimePassed:
      break;
  }
  SweepIfNobodyIsWaitedFor(policy, state, now_ns, &effects);
  return effects;
}

int64_t NextDeadline(const StopPolicy& policy, const StopState& state) {
  switch (state.tree) {
    case TreePhase::kGone:
      return kNever;
    case TreePhase::kSweeping:
      return std::min(state.sweep_next_ns, state.sweep_began_ns + policy.unkillable_ns);
    case TreePhase::kWatching:
      break;
  }
  int64_t next_ns = state.lease_deadline_ns;
  for (const WorkerStop& worker : state.workers) {
    if (worker.phase == WorkerPhase::kTerminating) next_ns = std::min(next_ns, worker.deadline_ns);
  }
  if (state.orphan_deadline_ns != 0) next_ns = std::min(next_ns, state.orphan_deadline_ns);
  return next_ns;
}

}  // namespace ddprun::keeper
