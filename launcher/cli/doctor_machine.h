// Checks of the machine: shared memory, limits of processes, cgroups, and the tools of hang
// reports. The facts that system calls tell are structs; the judgements are pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/cli/doctor_finding.h"
#include "launcher/cli/doctor_world.h"

namespace ddprun::doctor {

struct SharedMemory {
  bool there = false;     // /dev/shm is a file system of its own, or a folder
  bool writable = false;  // a file could be made in it
  uint64_t bytes = 0;
  uint64_t bytes_free = 0;
};
Finding JudgeSharedMemory(const SharedMemory& shm);
Outcome CheckSharedMemory(const World& world);
// The line for a job, where workers on several GPUs of this machine could die of it: NCCL puts its
// buffers into /dev/shm. "" where all is well, or there are no such workers.
std::string SharedMemoryNote(const Finding& judged, const std::string& device, uint32_t workers);

struct Limits {
  static constexpr uint64_t kUnlimited = ~uint64_t{0};
  uint64_t files = kUnlimited;         // RLIMIT_NOFILE, soft
  uint64_t files_hard = kUnlimited;    // hard
  uint64_t locked_bytes = kUnlimited;  // RLIMIT_MEMLOCK
  uint64_t processes = kUnlimited;     // RLIMIT_NPROC
  uint64_t core_bytes = kUnlimited;    // RLIMIT_CORE
  bool root = false;                   // to whom NPROC and MEMLOCK do not apply
  bool infiniband = false;             // cards that need locked memory
  std::string core_pattern;
};
std::vector<Finding> JudgeLimits(const Limits& limits);
Outcome CheckLimits(const World& world);

// cgroups of this process: version, memory limit, and whether one can be made below.
Outcome CheckCgroup(const World& world);

struct Tools {
  bool py_spy = false;
  bool gdb = false;
  long long ptrace_scope = 0;  // of Yama; 0 where there is none
  bool may_trace = false;      // root, or the capability
};
Finding JudgeTools(const Tools& tools);
Outcome CheckTools(const World& world);

}  // namespace ddprun::doctor
