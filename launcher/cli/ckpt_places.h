// What a word of `ddprun ckpt` means: a run, a step, a path. Looks at the file system; changes
// nothing. Errors are INVALID_ARGUMENT and say what there is.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ddprun::cli {

struct CheckpointsFolder {
  std::string path;     // the folder that holds step-<N>
  std::string run_dir;  // "": it belongs to no run folder
};

// `word`: a run folder, a folder `checkpoints`, a job id in ./runs; "": runs/latest.
absl::StatusOr<CheckpointsFolder> FindCheckpoints(const std::string& word);

struct CkptPlace {
  bool is_checkpoint = false;  // a folder with a manifest; else tensors alone
  std::string path;
  bool newest_of_run = false;  // the word named a run
};

// A running job removes old checkpoints: this one is not there any more.
bool WentAway(const CkptPlace& place);

// `word`: a step (400, step-400) or `best` of the run `run_dir` ("": runs/latest), a checkpoint's
// folder, a run's folder (its newest checkpoint), a safetensors file, the index of several, a
// folder that holds such; "": the newest checkpoint of the run.
absl::StatusOr<CkptPlace> FindPlace(const std::string& word, const std::string& run_dir);

// The safetensors files that hold the weights: of a file itself, an index, or a folder (model
// files of a checkpoint, all shards; `<stem>.safetensors` or `<stem>-<i>-of-<n>.safetensors`).
absl::StatusOr<std::vector<std::string>> WeightFiles(const std::string& path,
                                                     const std::string& stem = "model");

bool IsFolder(const std::string& path);

}  // namespace ddprun::cli
