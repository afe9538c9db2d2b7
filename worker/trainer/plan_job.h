// A job as it would be trained, made without training anything: data, model, length of the run,
// optimizer. What can be known to be wrong is an error here, before ddprun starts anything.
// On the CPU, alone; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/trainer/update.h"

namespace ddprun {

struct PlannedJob {
  TrainConfig config;
  bool resumed = false;
  std::shared_ptr<const Dataset> train_data;
  std::optional<Model> model;
  RunLength length;
  // Over parameters without storage: what it keeps has its size, and takes no memory.
  std::unique_ptr<ParameterUpdate> update;
};

// INVALID_ARGUMENT and the like say what is wrong, in one line. A resumed job has its weights from
// its checkpoint: the file of the initial ones is not read, and may be gone. `train_data`: null
// where they are still to be opened.
absl::StatusOr<PlannedJob> PlanJob(const TrainConfig& config, int world_size, bool resumed = false,
                                   std::shared_ptr<const Dataset> train_data = nullptr);

// Whether the model takes the data's samples and its loss their targets: computes both for two
// samples of each split.
absl::Status TryModel(PlannedJob* job);

}  // namespace ddprun
