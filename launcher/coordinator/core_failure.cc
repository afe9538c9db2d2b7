// What follows a generation that failed: its record, strikes against its node, and the decision
// whether another one comes.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/coordinator/accounting.h"
#include "launcher/coordinator/failure.h"
#include "launcher/coordinator/restart_policy.h"
#include "launcher/coordinator/strikes.h"
#include "launcher/coordinator/turn.h"
#include "launcher/coordinator/unreachable.h"

namespace ddprun::coordinator {
namespace {

constexpr size_t kFailuresKept = 100;  // DESIGN 4.2
constexpr int32_t kExitUnkillable = 1;

bool AllReady(const Generation& generation) {
  return std::all_of(generation.workers.begin(), generation.workers.end(),
                     [](const Worker& worker) { return worker.ready; });
}

double UptimeSeconds(const Turn& turn) {
  return static_cast<double>(turn.now_ns - turn.state.generation.started_ns) / kSecondNs;
}

void UpdateHistory(State& state, const FailureRecord& failure, bool ran_long) {
  History& h = state.history;
  const bool new_ground = state.generation.step > state.best_step;
  state.best_step = std::max(state.best_step, state.generation.step);
  const bool collided = failure.cause == Cause::kPortCollision;
  h.port_collisions_in_a_row = collided ? h.port_collisions_in_a_row + 1 : 0;
  h.failures_in_a_row = new_ground || ran_long ? 1 : h.failures_in_a_row + 1;
  h.start_failures_in_a_row = failure.before_start ? h.start_failures_in_a_row + 1 : 0;
}

void TellStrike(Turn& turn, const std::string& node, StrikeResult result) {
  const uint32_t limit = turn.state.spec.supervision().node_strikes_limit();
  switch (result) {
    case StrikeResult::kCounted:
      return;
    case StrikeResult::kLeftOut: {
      const NodeStrikes& entry = turn.state.strikes.at(node);
      const double seconds = static_cast<double>(entry.out_until_ns - turn.now_ns) / kSecondNs;
      return turn.Record("node_left_out", {{"node", node},
                                           {"strikes", entry.strikes},
                                           {"seconds", seconds},
                                           {"reason", "too many failures came from it"}});
    }
    case StrikeResult::kKept:
      return turn.Record(
          "node_kept",
          {{"node", node}, {"strikes", limit}, {"reason", "too few nodes are here without it"}});
  }
}

// A failure counts against the node that it lies on; not one of the job itself, which would follow
// it to any node, nor one of which nobody knows where it lies.
void StrikeNodes(Turn& turn, const FailureRecord& failure) {
  if (failure.cause == Cause::kNodeUnhealthy) {
    for (const auto& [node, reason] : JudgeHealth(turn.state).unfit) {
      TellStrike(turn, node, Strike(turn.state, node, /*whole=*/true));
    }
    return;
  }
  if (failure.cause == Cause::kPortCollision || failure.cause == Cause::kCommunicationUnknown ||
      failure.config) {
    return;
  }
  TellStrike(turn, failure.node, Strike(turn.state, failure.node, /*whole=*/false));
}

// L7: what SIGKILL does not end may hold devices and files. True: the job cannot go on.
bool CannotGoOnAfterUnkillable(Turn& turn) {
  State& s = turn.state;
  const auto& unkillable = s.generation.unkillable;
  size_t usable = UsableNodes(s);
  for (const auto& [node, pids] : unkillable) {
    if (s.nodes.contains(node) && s.nodes.at(node).attached && !LeftOut(s).contains(node)) --usable;
  }
  if (unkillable.empty()) return false;
  if (usable < s.spec.nodes_min()) return true;
  for (const auto& [node, pids] : unkillable) {
    LeaveOut(s, node);
    turn.Record("node_left_out", {{"node", node},
                                  {"strikes", s.strikes.at(node).strikes},
                                  {"seconds", kCooldownSecondsMax},
                                  {"reason", "processes are left there that cannot be killed"}});
  }
  return false;
}

std::string UnkillableText(const Generation& g) {
  return absl::StrCat(
      "processes are left that SIGKILL does not end (stuck in the kernel; a reboot ends them): ",
      absl::StrJoin(g.unkillable, "; ", [](std::string* out, const auto& entry) {
        absl::StrAppend(out, absl::StrJoin(entry.second, ", "), " on node ", entry.first);
      }));
}

void RunFailureHook(Turn& turn, const FailureRecord& failure, const Outcome& decision) {
  if (turn.state.spec.supervision().on_failure().empty()) return;
  turn.out.push_back(RunHook{failure, decision});
}

void End(Turn& turn, const FailureRecord& failure, Outcome outcome) {
  RunFailureHook(turn, failure, outcome);
  Finish(turn, std::move(outcome));
}

void Restart(Turn& turn, const FailureRecord& failure, const Decision& decision) {
  State& s = turn.state;
  CountRestart(s.spec.restart(), decision, turn.now_ns, s.history);
  nlohmann::ordered_json fields = {
      {"delay_seconds", static_cast<double>(decision.delay_ns) / kSecondNs},
      {"restarts_used", RestartsCounted(s.spec.restart(), s.history, turn.now_ns)},
      {"restarts_limit", s.spec.restart().max_restarts()},
      {"resume_step", s.committed_step}};
  if (decision.free) {
    fields["free"] = true;
    fields["reason"] = decision.text;
  }
  turn.Record("restart_scheduled", std::move(fields));
  RunFailureHook(turn, failure, {"", 0, "", decision.text});
  if (decision.delay_ns == 0) return WaitForNodes(turn);
  ReleaseLeaving(turn);
  s.phase = Phase::kBackingOff;
  s.deadline_ns = turn.now_ns + decision.delay_ns;
}

}  // namespace

bool HadStarted(const Turn& turn) {
  const Generation& g = turn.state.generation;
  return g.first_step != 0 || AllReady(g) ||
         UptimeSeconds(turn) >= turn.state.spec.restart().min_uptime_seconds();
}

void AfterFailure(Turn& turn) {
  State& s = turn.state;
  const bool had_started = HadStarted(turn);
  FailureRecord failure = MakeFailure(s, !had_started);
  if (!failure.sends_away) {
    UpdateHistory(s, failure, UptimeSeconds(turn) >= s.spec.restart().min_uptime_seconds());
  }
  nlohmann::ordered_json fields = {
      {"reason", failure.reason}, {"rank", failure.rank}, {"cause", CauseName(failure.cause)}};
  fields.update(AccountFailure(s, failure.cause, had_started));
  if (s.failures.size() == kFailuresKept) s.failures.erase(s.failures.begin());
  s.failures.push_back(failure);
  turn.Record("generation_ended", std::move(fields));
  if (s.stop.requested) return FinishStopped(turn);
  StrikeNodes(turn, failure);
  SendUnreachableAway(turn);
  const int32_t code = ExitCodeOf(failure);
  const int32_t worker_code = IsEndOfWorker(failure) ? code : 0;
  if (CannotGoOnAfterUnkillable(turn)) {
    return End(turn, failure,
               {"failed", worker_code != 0 ? worker_code : kExitUnkillable, "worker_failed",
                UnkillableText(s.generation), worker_code});
  }
  const Decision decision = DecideAfterFailure(s.spec.restart(), s.history, failure, turn.now_ns);
  if (decision.restart) return Restart(turn, failure, decision);
  const bool workers = worker_code != 0 && decision.exit_code == worker_code;
  const int32_t exit_code =
      workers ? MapExitCode(s.spec.supervision(), worker_code) : decision.exit_code;
  End(turn, failure, {"failed", exit_code, decision.failure_kind, decision.text, worker_code});
}

}  // namespace ddprun::coordinator
