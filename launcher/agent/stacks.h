// Where a process stands: its stack by py-spy or gdb where they are there and may look, else what
// the kernel tells in /proc.
//
// Threads: blocks the caller, and works with a few threads of its own. Bounds: the time limit is
// for all together; a stack holds at most kStackBytesMax. A process is looked at and left as it
// was: one that a tool has left stopped is continued, one that somebody else has stopped is not
// touched.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace ddprun::agent {

inline constexpr size_t kStackBytesMax = 32768;

struct Stack {
  std::string source;  // py-spy | gdb | /proc
  std::string text;
  std::string state;  // "sleeping in hrtimer_nanosleep"
};

// One for each pid, in their order; an empty one for pid 0. Ends early when `stop_fd` becomes
// readable.
std::vector<Stack> CollectStacks(const std::vector<pid_t>& pids,
                                 std::chrono::steady_clock::duration time, int stop_fd);

}  // namespace ddprun::agent
