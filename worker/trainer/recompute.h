// Recompute (activation checkpointing): a block's forward keeps only its input; backward runs it
// again with gradients, and then its backward. The activations of one block exist at a time, for
// one more forward a step.
//
// Results are bit-identical to those without: the second forward gets the random numbers
// (LibTorch's generators of the CPU and of the input's device) and the autocast state of the first,
// and leaves generators and buffers (running statistics) as it found them. The block's parameters
// are inputs of the node that stands for it in the graph, so each gets its gradient from the outer
// backward, once, also one that blocks share; hooks see no difference.
//
// REQUIRES of a block: it uses no parameter that is not registered in it, and does not change its
// input in place (both are noticed and end in c10::Error), and its output does not depend on
// buffers that it changes in training. Belongs to the training thread.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "worker/model/model.h"
#include "worker/trainer/autocast.h"

namespace ddprun {

// A block and what running it again needs.
struct RecomputedBlock;

class Recompute {
 public:
  // `model` is on its device; its list of blocks and their parameters stay as they are.
  Recompute(const Model& model, const AutocastMode& autocast);
  ~Recompute();

  // Block number `index` on `input`, like its forward(). Only where gradients are recorded.
  at::Tensor Run(int index, const at::Tensor& input) const;

 private:
  std::vector<std::shared_ptr<const RecomputedBlock>> blocks_;
};

}  // namespace ddprun
