// What a resumed run takes over from the first part of the job (job.json), and what must be equal.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "ddprun/v1/job.pb.h"
#include "launcher/cli/run_dir.h"

namespace ddprun::cli {

struct PreviousRun {
  v1::JobSpec spec;  // without environment
  bool trainer = false;
  TrainConfig config;       // of a trainer
  std::string config_toml;  // the same, to apply --set to
};

absl::StatusOr<PreviousRun> ReadPreviousRun(const RunFolderState& folder, const std::string& path);

// `now` may be longer than `previous`, which ended after `final_step`: in epochs or steps, or
// because the unit has changed.
bool AsksForMore(const TrainConfig& previous, const TrainConfig& now, uint64_t final_step);

}  // namespace ddprun::cli
