// --hosts: which machines, as typed. `a,b:4,user@c` or `@FILE` with one host a line: `name`,
// `name:4`, `name slots=4`; what stands behind # is a comment.
//
// Errors are INVALID_ARGUMENT and name the host (in a file: its line) and the fix. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ddprun::cli {

// Each takes five descriptors here: with more, the usual limit of 1,024 would not do. Slurm, or the
// same command on each node, has no such bound.
inline constexpr size_t kHostsMax = 128;

struct HostEntry {
  std::string target;  // what ssh is given: host or user@host
  std::string host;    // without the user; IPv6 without brackets
  std::string node;    // name of the node in the job: the host, or what a name may hold of it
  uint32_t slots = 0;  // workers; 0: as --nproc says

  bool operator==(const HostEntry&) const = default;
};

// The text of --hosts; a file is read from disk.
absl::StatusOr<std::vector<HostEntry>> ReadHosts(const std::string& text);
// Of a host file; `path` is for messages.
absl::StatusOr<std::vector<HostEntry>> ParseHostFile(const std::string& content,
                                                     const std::string& path);

}  // namespace ddprun::cli
