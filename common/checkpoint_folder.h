// The folder `checkpoints` of a run: names in it, and whether what is there is whole
// (docs/checkpoints.md). Used by the coordinator, which writes there, and by `ddprun ckpt`.
//
// Threads: any; nothing is kept. Only RemoveCheckpoint changes anything. Whoever calls it holds the
// run folder's lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint_manifest.h"
#include "common/files.h"

namespace ddprun {

// What is written here is no checkpoint yet, or no more.
inline constexpr char kCheckpointStaging[] = ".staging";

// A file that marks a checkpoint as better than all before it.
inline constexpr char kBestMark[] = "best.json";

// "step-100".
std::string CheckpointName(uint64_t step);
// The step of such a name; false for any other name.
bool ParseCheckpointName(const std::string& name, uint64_t* step);
// Steps with a folder of that name in `folder`, newest first.
std::vector<uint64_t> CommittedSteps(FileSystem& files, const std::string& folder);
// The newest of `steps` whose trainer has marked it as the best one; 0: none is.
uint64_t BestStep(FileSystem& files, const std::string& folder, const std::vector<uint64_t>& steps);

// The manifest of the checkpoint at `path`. One that speaks of another step than the folder's name
// is an error.
absl::StatusOr<ManifestContent> ReadManifest(FileSystem& files, const std::string& path);
// OK when every file is there and as long as the manifest says. Reads none of them.
absl::Status CheckSizes(FileSystem& files, const std::string& path,
                        const ManifestContent& manifest);
// Reads the file: its size and XXH3-128 are those of the manifest.
absl::Status CheckManifestFile(FileSystem& files, const std::string& path,
                               const ManifestFile& file);
// Reads everything: the manifest, and each file's size and XXH3-128. Errors name the file.
absl::StatusOr<ManifestContent> VerifyCheckpoint(FileSystem& files, const std::string& path);

// First out of sight, so that a half-removed checkpoint never looks like a whole one.
absl::Status RemoveCheckpoint(FileSystem& files, const std::string& folder, uint64_t step);

}  // namespace ddprun
