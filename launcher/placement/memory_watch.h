// MemoryWatch: whether workers that are dead still hold memory of this node's GPUs. The driver
// frees it when the last of a process is gone, which can take seconds after its death; a worker
// that is started before fails for want of memory.
//
// What counts is what came since Remember: a device is free again when it uses at most 512 MiB more
// than then, or when all that the driver lists was there already or belongs to living processes of
// others. Where the driver lists no process (as in most containers), the amount alone decides.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/placement/nvml.h"

namespace ddprun::placement {

struct HeldMemory {
  std::string device;  // UUID
  uint64_t bytes = 0;
  std::vector<uint32_t> pids;  // empty: the driver does not say whose it is
};

class MemoryWatch {
 public:
  using Look = std::function<std::optional<GpuMemory>(const std::string& uuid)>;
  using Alive = std::function<bool(uint32_t pid)>;
  MemoryWatch(Look look, Alive alive);

  // Takes what these devices hold now for others' business, and returns what is worth a note.
  std::vector<HeldMemory> Remember(const std::vector<std::string>& devices);
  bool Remembers() const { return !before_.empty(); }
  // What is still held. `own`: processes that were ours, living or dead.
  std::vector<HeldMemory> StillHeld(const std::set<uint32_t>& own) const;
  // It will not be waited for again.
  void GiveUp(const std::vector<HeldMemory>& held);

 private:
  struct Before {
    uint64_t used_bytes = 0;
    std::set<uint32_t> pids;
  };
  Look look_;
  Alive alive_;
  std::map<std::string, Before> before_;  // by UUID
};

// "20.0 GiB of GPU-1234 (pid 77)"; several are separated by commas.
std::string DescribeHeld(const std::vector<HeldMemory>& held);

}  // namespace ddprun::placement
