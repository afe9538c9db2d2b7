// Retention of run folders (--keep-runs): the oldest ended runs beside the new one are removed.
//
// Only what is a run folder for certain is ever touched: a folder (no link) that belongs to this
// user, with job.json, result.json and a .lock that nobody holds; never the new run, never the one
// that `latest` points to. A folder is renamed to kRemovingPrefix<name> before anything in it goes,
// so that a crash never leaves half a run; what a crash left is removed the next time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::cli {

inline constexpr char kRemovingPrefix[] = ".ddprun-removing-";

struct Removed {
  uint32_t runs = 0;
  uint64_t bytes = 0;
  std::vector<std::string> problems;  // one line each; the rest was done all the same
};

// Leaves the `keep` ended runs beside `run_dir` that ended last.
Removed RemoveOldRuns(const std::string& run_dir, uint32_t keep);

// "removed 3 old runs, 1.2 GB (--keep-runs 5)"; "" when there was nothing to do.
std::string RemovedLine(const Removed& removed, uint32_t keep);

}  // namespace ddprun::cli
