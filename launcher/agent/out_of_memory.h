// Whether the kernel's out-of-memory killer ended a worker, and which limit it had reached.
//
// SIGKILL alone does not say who sent it. The cgroup of this process, which is that of its workers,
// counts the kills: memory.events in v2, memory.oom_control in v1; where no cgroup tells, the
// kernel's log may name the pid. Belongs to one thread. The pure parts take the text of the files,
// and folders that a test may have made.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/v1/agent.pb.h"

namespace ddprun::agent {

// A cgroup that can limit the memory of this process.
struct MemoryGroup {
  std::string name;    // as the kernel names it: "/job"
  std::string folder;  // where its files are
  bool v2 = false;
};
// The own one first, then its ancestors. `cgroups`: /proc/self/cgroup, `mounts`:
// /proc/self/mountinfo. Empty where there is no memory controller.
std::vector<MemoryGroup> FindMemoryGroups(std::string_view cgroups, std::string_view mounts);

struct OomCounters {
  uint64_t kills = 0;          // of processes in it
  uint64_t limit_reached = 0;  // how often: v2: its limit led to a kill; v1: a charge failed
  uint64_t peak_bytes = 0;     // v1, whose newer kernels count no failed charges
  uint64_t limit_bytes = 0;    // 0: none
};
std::vector<OomCounters> ReadOomCounters(const std::vector<MemoryGroup>& groups);

// What the kernel's log says about a process that it has killed. Pure.
bool NamesOomKilled(std::string_view record, pid_t pid);

// "200 MiB"
std::string FormatBytes(uint64_t bytes);

class OomWatch {
 public:
  OomWatch() = default;
  ~OomWatch();
  OomWatch(const OomWatch&) = delete;
  OomWatch& operator=(const OomWatch&) = delete;

  // What has happened until now does not count.
  void Begin(std::vector<MemoryGroup> groups);
  // The same with the groups of this process and the kernel's log, if it may be read.
  void Begin();
  // Whether the process, which SIGKILL ended and not on our order, was killed for memory. A kill
  // that the cgroup has counted explains one process.
  std::optional<v1::OutOfMemory> Explain(pid_t pid);

 private:
  bool KernelLogNames(pid_t pid);
  v1::OutOfMemory Describe(const std::vector<OomCounters>& now) const;

  std::vector<MemoryGroup> groups_;
  std::vector<OomCounters> begin_;
  uint64_t explained_ = 0;
  int kernel_log_ = -1;
  std::vector<pid_t> named_;  // by the kernel's log
};

}  // namespace ddprun::agent
