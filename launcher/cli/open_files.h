// The limit of open files, RLIMIT_NOFILE.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace ddprun::cli {

// What ddprun itself opens for its workers on this machine.
uint64_t OpenFilesNeeded(uint32_t workers);

// Raises the soft limit to what is needed, where it is lower; the workers have it then, too.
// INVALID_ARGUMENT, naming ulimit -n: the hard limit is below.
absl::Status HaveOpenFiles(uint64_t needed);

}  // namespace ddprun::cli
