// Checks of the run folder's disk: room, speed, latency of fsync, locks, and whether other nodes
// see it. A folder that is not there yet is judged by the nearest one above it; nothing but one
// probe file is made, and it is removed. Bounded: 64 MiB, 2 s.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/cli/doctor_finding.h"
#include "launcher/cli/doctor_world.h"

namespace ddprun::doctor {

enum class DiskKind { kLocal, kNetwork, kMemory, kOverlay };

struct Disk {
  std::string folder;       // where it was probed
  std::string file_system;  // "ext4", "nfs" …
  DiskKind kind = DiskKind::kLocal;
  uint64_t bytes_free = 0;
  uint64_t files_free = ~uint64_t{0};
  std::string write_error;  // "" when the probe was written
  uint64_t bytes_written = 0;
  double write_seconds = 0;  // with the fsync at the end
  double sync_seconds = 0;   // median of small writes with fsync
  std::string lock_error;    // "" when flock works
};

// By the number that statfs tells.
DiskKind KindOfFileSystem(uint64_t magic, std::string* name);
std::vector<Finding> JudgeDisk(const Disk& disk);
Disk ProbeDisk(const std::string& folder);
Outcome CheckDisk(const World& world);

}  // namespace ddprun::doctor
