// The checkpoints of one run folder: commit, choice of the one to resume from, retention.
//
// Commit order (facts: shards first, then the manifest, then one rename): every shard is durable in
// `checkpoints/.staging/g<G>-step-<N>/` before it is reported; here the manifest is written there
// (fsync, rename, fsync of the folder), the folder is renamed to `step-<N>`, and the parent is
// fsynced. Only then is it real. A crash at any point leaves the old or the new state, whole.
// Verified means: the manifest parses, belongs to this job, and every file has its size and
// XXH3-128. The newest checkpoint that holds a file named kBestMark is the best one so far (its
// trainer says so); it is never removed, and the link `checkpoints/best` leads to it. What is kept
// follows from the folders alone, never from the link, so no crash can lose it. Threads: one thread
// (the coordinator's I/O thread); other processes of the same run folder are kept away by its lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint_folder.h"
#include "common/files.h"
#include "launcher/coordinator/core.h"

namespace ddprun::coordinator {

class CheckpointStore {
 public:
  // `run_dir` holds (or will hold) the folder `checkpoints`; the `kept` newest and the best are
  // kept, 0 = all.
  CheckpointStore(FileSystem& files, std::string run_dir, std::string job_id, uint32_t kept);

  // Makes the staged checkpoint real and returns its path. Older ones beyond `kept` are removed
  // afterwards.
  absl::StatusOr<std::string> Commit(const CommitCheckpoint& commit);
  // The newest one that verifies. Those newer ones that do not are renamed to `step-<N>.bad-g<G>`
  // and reported. Staging folders of earlier generations are removed.
  ResumeChosen ChooseResume(uint64_t generation);
  void DropStaging(uint64_t generation, uint64_t step);
  // OK when the folder `path` is a whole checkpoint.
  absl::Status Verify(const std::string& path) const;

 private:
  std::string StagingPath(uint64_t generation, uint64_t step) const;
  // Lets the link `best` lead to the best one; removes it where none is.
  void PointToBest();
  void RemoveOld();

  FileSystem& files_;
  std::string folder_;  // <run_dir>/checkpoints
  std::string job_id_;
  uint32_t kept_;
};

// The manifest of a checkpoint whose files lie in `folder`: reads each safetensors header for
// names, shapes and extents.
absl::StatusOr<std::string> MakeManifest(FileSystem& files, const std::string& folder,
                                         const std::string& job_id, const CommitCheckpoint& commit);

}  // namespace ddprun::coordinator
