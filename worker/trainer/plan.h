// A training step as a list of actions that the trainer executes in order. Plain data parallel is
// one stage that holds all blocks; a pipeline stage will run the same loop over another list (with
// sends and receives in it). Pure; free of LibTorch.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

enum class ActionKind {
  kLoad,      // the next micro-batch
  kCount,     // valid targets of the whole update, over all ranks
  kForward,   // blocks first_block … last_block−1
  kLoss,      // of the micro-batch, weighted by its share of the targets of the update
  kBackward,  // gradients of the micro-batch are added up; on the last one reduction goes on
              // meanwhile
  kReduce,    // waits until the gradients are the mean over all ranks
  kUpdate,    // the optimizer
};

struct Action {
  ActionKind kind;
  int micro_batch = 0;
  int first_block = 0;
  int last_block = 0;
  bool last_micro_batch = false;
  friend bool operator==(const Action&, const Action&) = default;
};

// One update of `micro_batches` micro-batches (accumulation) through all blocks. count_targets: how
// many targets count must be read from the data, so all micro-batches are loaded first.
std::vector<Action> PlanDataParallel(int blocks, int micro_batches, bool count_targets = false);

// "load0 forward0[0,2) loss0 backward0! reduce update", `!` marks the backward that reduces. For
// tests and logs.
std::string PlanText(const std::vector<Action>& plan);

}  // namespace ddprun
