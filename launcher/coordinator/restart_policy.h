// The one place that decides whether a failed generation is followed by another.
//
// Pure functions of (policy, history, failure). Called by the coordinator's core when nothing of
// the failed generation is left.
#pragma once

#include <cstdint>
#include <string>

#include "ddprun/v1/job.pb.h"
#include "launcher/coordinator/state.h"

namespace ddprun::coordinator {

enum class DecisionReason {
  kRestart,      // within the budget
  kConfigError,  // the worker says that a restart cannot help
  kStartFailed,  // a program could not be executed
  kCrashLoop,    // start_failures_limit failures in a row before the start
  kNoProgress,   // no_progress_limit restarts without a newer checkpoint
  kBudgetUsed,   // max_restarts used up
};

struct Decision {
  bool restart = false;
  DecisionReason reason = DecisionReason::kRestart;
  int64_t delay_ns = 0;      // before the restart
  std::string text;          // for people: what was decided and why
  int32_t exit_code = 0;     // of ddprun, when not restarting
  std::string failure_kind;  // for result.json, when not restarting
};

// `history` already counts this failure in failures_in_a_row, start_failures_in_a_row;
// restarts_charged and restarts_without_commit count the restarts made so far.
Decision DecideAfterFailure(const v1::RestartPolicy& policy, const History& history,
                            const FailureRecord& failure);

// Exit code that stands for this failure: the worker's own, 128 + signal, or 4 for a lost node.
int32_t ExitCodeOf(const FailureRecord& failure);

}  // namespace ddprun::coordinator
