// Clipping of gradients by their global norm, as torch.nn.utils.clip_grad_norm_ does it. Nothing
// here waits for a GPU. One thread.
#pragma once

#include <torch/torch.h>

#include <vector>

namespace ddprun {

// The 2-norm of all elements of all tensors together, a float32 scalar on their device. REQUIRES:
// tensors of one dimension, on one device. The same bits on every rank that passes the same ones in
// the same order.
at::Tensor GlobalNorm(const std::vector<at::Tensor>& gradients);

// Multiplies the gradients by max_norm / (norm + 1e-6) where that is less than 1.
void ClipToNorm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm, double max_norm);

}  // namespace ddprun
