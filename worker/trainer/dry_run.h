// What the job needs and what would make it less, measured on the CPU by a rank that has just run
// out of memory: a run that has enough pays nothing. Its own model is left alone.
#pragma once

#include <memory>
#include <optional>

#include "common/config/train_config.h"
#include "worker/data/dataset.h"
#include "worker/trainer/plan_memory.h"

namespace ddprun {

// What is known after a minute at most, since somebody waits for the error. Nothing where it fails,
// where that is too short for the job as it is, or where the host has too little memory for one
// more model for each of its `local_ranks`. A thread that takes longer goes on: only for a process
// that is about to end.
std::optional<MemoryAdvice> DryRun(const TrainConfig& config, std::shared_ptr<const Dataset> data,
                                   int world_size, int local_ranks, int64_t weight_bytes);

}  // namespace ddprun
