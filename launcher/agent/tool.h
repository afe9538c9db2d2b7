// Runs a program of the system for its output, within a time limit. Any thread; blocks the caller
// until the program has ended or the limit has come, when it is killed with its process group.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::agent {

struct ToolRun {
  enum class End { kMissing, kExited, kTimedOut };
  End end = End::kMissing;
  int exit_code = -1;  // of kExited; 128 + signal
  std::string output;  // standard output and error, the first bytes of it
};

// `arguments[0]` is looked up in PATH. The limit also ends when `stop_fd` becomes readable.
ToolRun RunTool(const std::vector<std::string>& arguments,
                std::chrono::steady_clock::time_point limit, size_t output_bytes_max, int stop_fd);

}  // namespace ddprun::agent
