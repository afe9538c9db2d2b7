// Where the core of a worker went that a signal has killed: what /proc/sys/kernel/core_pattern
// says, with the names filled in, and whether such a file is there. Threads: any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace ddprun::agent {

struct CoreFacts {
  std::string pattern;       // /proc/sys/kernel/core_pattern
  bool uses_pid = false;     // /proc/sys/kernel/core_uses_pid
  uint64_t limit_bytes = 0;  // RLIMIT_CORE of the workers
  std::string directory;     // their working directory
  std::string host;
  pid_t pid = 0;
  int signal = 0;
  bool dumped = false;     // the kernel says that a core was written or handed on
  int64_t started_ns = 0;  // of the worker, CLOCK_REALTIME: older files are another's
};

// Whether this signal makes a core by default.
bool MakesCore(int signal);

// The pattern with what is known filled in; '*' for the rest, as for glob(3). Pure.
std::string CoreGlob(const CoreFacts& facts);

// One sentence; "" where there is nothing to say.
std::string DescribeCore(const CoreFacts& facts);

// The facts of this machine for a worker.
CoreFacts CoreFactsHere(const std::string& directory, pid_t pid, int signal, bool dumped,
                        int64_t started_ns);

}  // namespace ddprun::agent
