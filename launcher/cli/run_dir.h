// The run folder before anything is in it: who it belongs to, whether it is in use, and whether the
// disk takes what we will write. Only MakeRunFolder changes anything on disk.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddprun::cli {

// "20261130-071502-a1b2": local date, time, and four random hexadecimal digits.
std::string NewJobId();

// What a run folder holds.
struct RunFolderState {
  bool exists = false;
  bool holds_job = false;
  std::string job_id;      // of job.json; "" when it names none
  std::string job_json;    // text of job.json
  bool succeeded = false;  // its last run did
  uint64_t final_step = 0;
  uint64_t committed_step = 0;  // newest checkpoint folder; 0: none
};

// FAILED_PRECONDITION: in use by a live ddprun. INVALID_ARGUMENT: no folder, or not readable.
absl::StatusOr<RunFolderState> LookAtRunFolder(const std::string& path);

// Makes the folder, and proves with a small file that the disk takes bytes. On an error
// everything that was made is removed.
absl::Status MakeRunFolder(const std::string& path);

}  // namespace ddprun::cli
