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
  kRestartFree,  // a port collision: costs nothing
  kConfigError,  // the worker says that a restart cannot help
  kStartFailed,  // a program could not be executed
  kCode,         // --restart-on or --no-restart-on speaks against this code
  kCrashLoop,    // start_failures_limit failures in a row before the start
  kNoProgress,   // no_progress_limit restarts without a newer checkpoint
  kBudgetUsed,   // max_restarts used up
};

struct Decision {
  bool restart = false;
  bool free = false;  // not charged to the budget
  DecisionReason reason = DecisionReason::kRestart;
  int64_t delay_ns = 0;      // before the restart
  std::string text;          // for people: what was decided and why
  int32_t exit_code = 0;     // the worker's (ExitCodeOf) or 93, when not restarting
  std::string failure_kind;  // for result.json, when not restarting
};

// `history` already counts this failure in failures_in_a_row, start_failures_in_a_row,
// port_collisions_in_a_row; restarts_charged, charged_ns and restarts_without_commit count the
// restarts made so far. `now_ns` is on the clock of charged_ns.
Decision DecideAfterFailure(const v1::RestartPolicy& policy, const History& history,
                            const FailureRecord& failure, int64_t now_ns);

// Restarts that count against the budget: all, or those within the restart window.
uint32_t RestartsCounted(const v1::RestartPolicy& policy, const History& history, int64_t now_ns);

// Notes a restart that the decision grants.
void CountRestart(const v1::RestartPolicy& policy, const Decision& decision, int64_t now_ns,
                  History& history);

// Exit code that stands for this failure: the worker's own, 128 + signal, 127 for a program that
// cannot be executed, or 4 for a node that was lost or is unhealthy.
int32_t ExitCodeOf(const FailureRecord& failure);

// It is a worker's own end that counts, and so its code (not one of a lost node or a hang).
bool IsEndOfWorker(const FailureRecord& failure);

// --exit-code-map: ddprun's code for this code of a worker.
int32_t MapExitCode(const v1::Supervision& supervision, int32_t worker_code);

}  // namespace ddprun::coordinator
