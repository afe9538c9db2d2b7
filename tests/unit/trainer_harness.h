// Trains in this process against a keeper in a thread, which commits checkpoints as a coordinator
// would: it renames the staging folder. For tests of one rank. One run at a time: LibTorch's
// generator belongs to the process.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/train_config.h"

namespace ddprun {

struct TrainOptions {
  TrainConfig config;
  std::string run_dir;
  int64_t resume_step = -1;           // ≥ 0: from checkpoints/step-<N> of the run folder
  int64_t stop_after = -1;            // ≥ 0: a stop is asked for when this step was reported
  bool commit = true;                 // false: every checkpoint is dropped
  std::set<int64_t> unwritable = {};  // steps at which no folder for a checkpoint can be made
};

struct TrainOutcome {
  absl::Status status;
  std::map<std::string, std::string> results;  // FINAL_STEP, WEIGHTS_DIGEST, METRIC.…
  std::vector<int64_t> committed;              // steps
  std::vector<int64_t> skipped;
};

TrainOutcome Train(const TrainOptions& options);

// A small data set of random 28 × 28 images under `dir`, always the same; a configuration that uses
// it.
TrainConfig WriteRandomData(const std::string& dir, uint32_t train_samples, uint32_t test_samples);

}  // namespace ddprun
