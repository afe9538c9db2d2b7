// manifest.json of a checkpoint, read back (docs/checkpoints.md). The file may be damaged or made
// by somebody else: what is not as it is written is an error, never a crash. Pure; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddprun {

inline constexpr char kManifestName[] = "manifest.json";

struct ManifestFile {
  std::string name;  // in the checkpoint's folder
  uint64_t bytes = 0;
  std::string xxh3_128;
};
struct ManifestContent {
  std::string job_id;
  uint64_t step = 0;
  uint64_t generation = 0;  // 0: not said
  uint64_t world_size = 0;  // 0: not said
  std::vector<ManifestFile> files;
};

absl::StatusOr<ManifestContent> ParseManifest(absl::string_view text);

// A name that stays in its folder, and that JSON can hold.
bool IsShardName(absl::string_view name);

}  // namespace ddprun
