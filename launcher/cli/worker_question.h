// Questions to ddp-worker: whether a configuration can be trained (`ddp-worker --check N`), what it
// would take (`--plan N`); and an errand (`--export-torchscript`). All compute on the CPU.
//
// Waits in the calling thread, for a time that is bounded, and ends the worker when it stops
// waiting. It needs the stop signals blocked (BlockSignals); without that they have their usual
// effect, and the worker ends with this process.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "launcher/cli/preflight.h"

namespace ddprun::cli {

struct WorkerQuestion {
  std::vector<std::string> arguments;  // "--check", "4"
  std::string what;                    // for the line that says what is waited for
  std::string config_json;             // resolved; where it is about one
  KeyPlaces places;                    // of its keys
  std::vector<int> stop_signals;
  double seconds_max = 600;
};

struct WorkerAnswer {
  enum class End { kExited, kStopped, kTimedOut };
  End end = End::kExited;
  int exit_code = 0;   // of kExited
  int signal = 0;      // of kStopped
  std::string output;  // standard output
  std::string error;   // last line of standard error, without "ddp-worker: "
};

absl::StatusOr<WorkerAnswer> AskWorker(const WorkerQuestion& question, const Surroundings& here);

// The answer's exit code for ddprun, 0 where the worker had nothing to object; anything else has
// been printed. A check that took too long objects to nothing.
int ExitCodeOf(const absl::StatusOr<WorkerAnswer>& answer, const WorkerQuestion& question);

// --check of a plan, where it needs one.
int CheckByWorker(const RunPlan& plan, const Surroundings& here,
                  const std::vector<int>& stop_signals);

}  // namespace ddprun::cli
