// What job.json records beside the spec: who ran what, where, with which versions; of a train.cfg
// also those of the trainer (LibTorch, CUDA, NCCL). No secrets: of the environment only what ddprun
// added.
#pragma once

#include <string>

#include "launcher/cli/preflight.h"

namespace ddprun::cli {

// JSON text of an object.
std::string JobFacts(const RunPlan& plan, const Surroundings& here);

}  // namespace ddprun::cli
