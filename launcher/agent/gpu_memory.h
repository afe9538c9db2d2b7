// GpuMemoryGate: holds a generation back until the GPUs of this node are free of the memory of
// workers that are dead, for at most Supervision.gpu_memory_wait_seconds (0: the GPUs are not
// looked at). Before the first generation it only says what others use, which later counts as
// theirs.
//
// Belongs to the agent's loop. The driver is asked by a thread of its own, since a GPU that has
// failed can hang whoever asks; a generation waits for such an answer no longer than
// kDriverSecondsMax beyond the limit above.
#pragma once

#include <memory>
#include <set>

#include "launcher/agent/preparation.h"
#include "launcher/placement/memory_watch.h"
#include "launcher/placement/plan.h"

namespace ddprun::agent {

inline constexpr double kDriverSecondsMax = 5;

class GpuMemoryGate {
 public:
  // `nvml` may be null: then there is nothing to wait for.
  explicit GpuMemoryGate(std::shared_ptr<placement::Nvml> nvml);

  // A process that may come to hold memory.
  void WorkerStarted(uint32_t pid) { own_.insert(pid); }
  // What is to be done before this generation; null: nothing.
  std::unique_ptr<PreparationStep> StepBefore(uint64_t generation, const v1::JobSpec& spec,
                                              const placement::NodePlan& plan);

  struct Watch;  // shared with the thread that asks

 private:
  std::shared_ptr<Watch> watch_;  // null without NVML
  bool first_ = true;
  std::set<uint32_t> own_;  // of the generation that ran last
};

}  // namespace ddprun::agent
