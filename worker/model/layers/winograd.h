// Convolutions with 3×3 kernels, stride 1 and padding 1 on CPUs by Winograd's minimal filtering
// F(2×2, 3×3): 2.25 times fewer multiplications than the direct form, in forward and in both
// gradients.
//
// Source: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks",
// arXiv:1509.09308, section 4.1. A 4×4 tile d of the input and a kernel g give a 2×2 tile of the
// output: Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A, summed over the input channels, which for all tiles together
// are 16 matrix products. The gradients are the transposes of these steps, so they are those of
// this very function. The transforms have the factors 0, ±1 and ½ alone: results differ from the
// direct form by a few roundings of float32.
//
// Shapes: input {n, c, h, w}, weight {o, c, 3, 3} → {n, o, h, w}. Any thread; LibTorch's threads
// share the work. Draws no random numbers, and gives the same bits each time.
#pragma once

#include <torch/torch.h>

namespace ddprun {

// float32 on a CPU outside of autocast, c and o multiples of 16.
bool WinogradApplies(const at::Tensor& input, const at::Tensor& weight);

// Where WinogradApplies. The result is in channels_last order.
at::Tensor WinogradConvolution(const at::Tensor& input, const at::Tensor& weight);

}  // namespace ddprun
