#include "launcher/coordinator/restart_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ddprun::coordinator {
namespace {

constexpr int32_t kExitNodeLost = 4;
constexpr int32_t kExitNoProgress = 93;
constexpr int32_t kExitCannotStart = 127;
// Collisions of ports in a row that are answered at once; a program that takes its own port twice
// would otherwise be started again and again without a pause.
constexpr uint32_t kCollisionsAtOnce = 3;

// The first restart comes at once, the second in a row after the base, then doubling up to the
// maximum.
int64_t BackoffNs(const v1::RestartPolicy& policy, uint32_t failures_in_a_row) {
  if (failures_in_a_row <= 1) return 0;
  double seconds = policy.backoff_base_seconds();
  for (uint32_t i = 2; i < failures_in_a_row && seconds < policy.backoff_max_seconds(); ++i) {
    seconds *= 2;
  }
  return static_cast<int64_t>(std::min(seconds, policy.backoff_max_seconds()) * kSecondNs);
}

Decision Finish(DecisionReason reason, int32_t exit_code, std::string kind, std::string text) {
  return {.restart = false,
          .free = false,
          .reason = reason,
          .delay_ns = 0,
          .text = std::move(text),
          .exit_code = exit_code,
          .failure_kind = std::move(kind)};
}

std::string FailureKind(const FailureRecord& failure) {
  switch (failure.cause) {
    case Cause::kNodeLost:
      return "node_lost";
    case Cause::kNodeUnhealthy:
    case Cause::kStartFailed:
      return "start_failed";
    case Cause::kNone:
    case Cause::kWorkerError:
    case Cause::kSignal:
    case Cause::kOutOfMemory:
    case Cause::kHang:
    case Cause::kCommunicationUnknown:
    case Cause::kPortCollision:
    case Cause::kInitTimeout:
    case Cause::kKeeperDied:
    case Cause::kUnkillable:
      return "worker_failed";
  }
  return "internal";
}

template <typename Codes>
bool Holds(const Codes& codes, int32_t code) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

// "" when the lists of codes let it be restarted.
std::string CodeForbids(const v1::RestartPolicy& policy, const FailureRecord& failure) {
  if (!IsEndOfWorker(failure)) return "";
  const int32_t code = ExitCodeOf(failure);
  if (Holds(policy.no_restart_on(), code)) {
    return absl::StrCat("--no-restart-on names the worker's code ", code);
  }
  const bool listed = policy.restart_on().empty() || Holds(policy.restart_on(), code);
  if (listed || failure.cause == Cause::kPortCollision) return "";
  return absl::StrCat("--restart-on does not name the worker's code ", code);
}

std::string BudgetText(const v1::RestartPolicy& policy) {
  if (policy.max_restarts() == 0) return "--max-restarts 0 allows none";
  std::string text = policy.max_restarts() == 1
                         ? "the one restart is used up"
                         : absl::StrCat("all ", policy.max_restarts(), " restarts are used up");
  if (policy.window_seconds() > 0) {
    absl::StrAppend(&text, " (of the last ", policy.window_seconds(), " s)");
  }
  return text;
}

Decision Restart(const v1::RestartPolicy& policy, const History& history,
                 const FailureRecord& failure, uint32_t counted) {
  Decision decision;
  decision.restart = true;
  decision.delay_ns = BackoffNs(policy, history.failures_in_a_row);
  decision.text = absl::StrCat("restart ", counted + 1, " of ", policy.max_restarts());
  if (failure.sends_away && history.restarts_free < policy.free_restarts_limit()) {
    decision.free = true;
    decision.reason = DecisionReason::kRestartFree;
    decision.delay_ns = 0;
    decision.text = "a node that the others cannot reach is sent away, free of charge";
    return decision;
  }
  if (failure.cause != Cause::kPortCollision ||
      history.restarts_free >= policy.free_restarts_limit()) {
    return decision;
  }
  const uint32_t in_a_row = history.port_collisions_in_a_row;
  decision.free = true;
  decision.reason = DecisionReason::kRestartFree;
  decision.delay_ns =
      in_a_row <= kCollisionsAtOnce ? 0 : BackoffNs(policy, in_a_row - kCollisionsAtOnce + 1);
  decision.text = "a port was taken by another program: a new one is tried, free of charge";
  return decision;
}

}  // namespace

bool IsEndOfWorker(const FailureRecord& failure) {
  switch (failure.cause) {
    case Cause::kWorkerError:
    case Cause::kSignal:
    case Cause::kOutOfMemory:
    case Cause::kCommunicationUnknown:
    case Cause::kPortCollision:
      return failure.exit_code != 0 || failure.signal != 0;
    case Cause::kNone:
    case Cause::kHang:
    case Cause::kNodeLost:
    case Cause::kNodeUnhealthy:
    case Cause::kStartFailed:
    case Cause::kInitTimeout:
    case Cause::kKeeperDied:
    case Cause::kUnkillable:
      return false;
  }
  return false;
}

int32_t ExitCodeOf(const FailureRecord& failure) {
  if (failure.cause == Cause::kNodeLost || failure.cause == Cause::kNodeUnhealthy) {
    return kExitNodeLost;
  }
  if (failure.signal != 0) return 128 + failure.signal;
  if (failure.cause == Cause::kStartFailed) return kExitCannotStart;
  return failure.exit_code != 0 ? failure.exit_code : 1;
}

int32_t MapExitCode(const v1::Supervision& supervision, int32_t worker_code) {
  auto found = supervision.exit_code_map().find(worker_code);
  return found == supervision.exit_code_map().end() ? worker_code : found->second;
}

uint32_t RestartsCounted(const v1::RestartPolicy& policy, const History& history, int64_t now_ns) {
  if (policy.window_seconds() <= 0) return history.restarts_charged;
  const auto window_ns = static_cast<int64_t>(policy.window_seconds() * kSecondNs);
  return static_cast<uint32_t>(
      std::count_if(history.charged_ns.begin(), history.charged_ns.end(),
                    [&](int64_t charged_ns) { return now_ns - charged_ns < window_ns; }));
}

void CountRestart(const v1::RestartPolicy& policy, const Decision& decision, int64_t now_ns,
                  History& history) {
  if (decision.free) {
    ++history.restarts_free;
    return;
  }
  ++history.restarts_without_commit;
  ++history.restarts_charged;
  if (policy.window_seconds() <= 0) return;
  const auto window_ns = static_cast<int64_t>(policy.window_seconds() * kSecondNs);
  std::erase_if(history.charged_ns,
                [&](int64_t charged_ns) { return now_ns - charged_ns >= window_ns; });
  history.charged_ns.push_back(now_ns);
}

Decision DecideAfterFailure(const v1::RestartPolicy& policy, const History& history,
                            const FailureRecord& failure, int64_t now_ns) {
  const std::string kind = FailureKind(failure);
  const int32_t code = ExitCodeOf(failure);
  if (failure.cause == Cause::kStartFailed) {
    return Finish(DecisionReason::kStartFailed, code, kind,
                  "the program could not be started, so a restart cannot help");
  }
  if (failure.config) {
    return Finish(DecisionReason::kConfigError, code, kind,
                  "the worker reports an error that a restart cannot mend");
  }
  if (std::string reason = CodeForbids(policy, failure); !reason.empty()) {
    return Finish(DecisionReason::kCode, code, kind, std::move(reason));
  }
  const uint32_t counted = RestartsCounted(policy, history, now_ns);
  Decision restart = Restart(policy, history, failure, counted);
  if (restart.free) return restart;
  if (failure.before_start && !policy.max_restarts_given() &&
      history.start_failures_in_a_row >= policy.start_failures_limit()) {
    return Finish(DecisionReason::kCrashLoop, code, kind,
                  absl::StrCat("it failed ", history.start_failures_in_a_row,
                               " times in a row before it had started (--max-restarts N tries "
                               "N times all the same)"));
  }
  if (history.any_commit && history.restarts_without_commit >= policy.no_progress_limit()) {
    return Finish(DecisionReason::kNoProgress, kExitNoProgress, "no_progress",
                  absl::StrCat("no new checkpoint was committed in ",
                               history.restarts_without_commit, " restarts"));
  }
  if (counted >= policy.max_restarts()) {
    return Finish(DecisionReason::kBudgetUsed, code, kind, BudgetText(policy));
  }
  return restart;
}

}  // namespace ddprun::coordinator
