// What `ddprun ckpt` does, one function an action; ckpt_command.cc calls them.
//
// Each prints to standard output and returns OK, or an error of which nothing has been printed.
// INVALID_ARGUMENT, ALREADY_EXISTS, FAILED_PRECONDITION: what was typed cannot be done (exit code
// 2); all others: bad data (1). One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/cli/ckpt_places.h"
#include "launcher/cli/options.h"

namespace ddprun::cli {

// A folder of a run's checkpoints, as ls shows it.
struct CkptEntry {
  std::string name;  // "step-400", "step-400.bad-g2", "best"
  uint64_t step = 0;
  double age_seconds = 0;
  double modified = 0;  // seconds since 1970
  uint64_t bytes = 0;
  uint64_t world_size = 0;  // 0: not known
  uint64_t generation = 0;  // 0: not known
  std::string problem;      // "": every file is there and has its size
};
std::vector<CkptEntry> ListCheckpoints(const std::string& folder);

absl::Status CkptList(const Options& options);
absl::Status CkptShow(const Options& options);
absl::Status CkptVerify(const Options& options);
absl::Status CkptExport(const Options& options);
// The checkpoint that is to be exported; the files that hold its weights are whole.
absl::StatusOr<std::string> CheckpointToExport(const Options& options);
absl::Status CkptConvert(const Options& options);
absl::Status CkptPrune(const Options& options);

// The steps that prune removes: of the whole ones all but the newest `keep`. `steps` newest first,
// `whole` says of each whether it can be resumed from.
std::vector<uint64_t> StepsToPrune(const std::vector<uint64_t>& steps,
                                   const std::vector<bool>& whole, uint32_t keep);

}  // namespace ddprun::cli
