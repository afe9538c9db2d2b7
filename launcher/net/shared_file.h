// Proof that two nodes see one folder: a file with a random name and a random value, which the
// coordinator writes and the agent reads.
//
// An agent reads it before it knows who asks, so it reads nothing that does not look like such a
// file, and gives away nothing but such a value. Threads: any.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddprun::net {

struct SharedFile {
  std::string path;
  std::string value;
};

// Removes what earlier coordinators left in the folder, and writes a new one (for its owner alone).
absl::StatusOr<SharedFile> WriteSharedFile(const std::string& folder);

// The value. Errors are for people, without the path.
absl::StatusOr<std::string> ReadSharedFile(const std::string& path);

}  // namespace ddprun::net
