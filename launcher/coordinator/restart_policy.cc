#include "launcher/coordinator/restart_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ddprun::coordinator {
namespace {

constexpr int32_t kExitNodeLost = 4;
constexpr int32_t kExitNoProgress = 93;
constexpr int32_t kExitCannotStart = 127;

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
          .reason = reason,
          .delay_ns = 0,
          .text = std::move(text),
          .exit_code = exit_code,
          .failure_kind = std::move(kind)};
}

}  // namespace

int32_t ExitCodeOf(const FailureRecord& failure) {
  if (failure.node_lost) return kExitNodeLost;
  if (failure.signal != 0) return 128 + failure.signal;
  if (failure.start_failed) return kExitCannotStart;
  return failure.exit_code != 0 ? failure.exit_code : 1;
}

Decision DecideAfterFailure(const v1::RestartPolicy& policy, const History& history,
                            const FailureRecord& failure) {
  const std::string kind = failure.node_lost ? "node_lost" : "worker_failed";
  const int32_t code = ExitCodeOf(failure);
  if (failure.start_failed) {
    return Finish(DecisionReason::kStartFailed, code, "start_failed",
                  "the program could not be started, so a restart cannot help");
  }
  if (failure.config) {
    return Finish(DecisionReason::kConfigError, code, kind,
                  "the worker reports an error that a restart cannot mend");
  }
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
  if (history.restarts_charged >= policy.max_restarts()) {
    return Finish(DecisionReason::kBudgetUsed, code, kind,
                  policy.max_restarts() == 0
                      ? "--max-restarts 0 allows none"
                      : absl::StrCat("all ", policy.max_restarts(), " restarts are used up"));
  }
  Decision decision;
  decision.restart = true;
  decision.delay_ns = BackoffNs(policy, history.failures_in_a_row);
  decision.text =
      absl::StrCat("restart ", history.restarts_charged + 1, " of ", policy.max_restarts());
  return decision;
}

}  // namespace ddprun::coordinator
