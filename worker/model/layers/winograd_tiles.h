// The linear maps between tiles of F(2×2, 3×3) (winograd.h), each for `channels` channels at once,
// which lie one after the other; a multiple of 16.
//
// "Points": the 16 numbers of a transformed tile; point k of the channels lies at
// points + k · stride. Pixels are pointers to their channels, row by row. Pure; any thread.
#pragma once

#include <cstdint>

namespace ddprun {

constexpr int64_t kWinogradLanes = 16;   // channels are worked on in groups of so many
constexpr int64_t kWinogradPoints = 16;  // of a transformed tile

struct TilePoints {
  float* data;
  int64_t stride;
};

// points = Bᵀ d B of 16 pixels.
void TransformInput(const float* const* pixels, TilePoints points, int64_t channels);
// 4 pixels = Aᵀ m A.
void TransformOutput(TilePoints points, float* const* pixels, int64_t channels);
// points = A d Aᵀ of 4 pixels: the transpose of TransformOutput.
void TransformOutputGradient(const float* const* pixels, TilePoints points, int64_t channels);
// 16 pixels += B v Bᵀ: the transpose of TransformInput.
void AddInputGradient(TilePoints points, float* const* pixels, int64_t channels);
// points = G g Gᵀ of 9 kernel places.
void TransformKernel(const float* const* places, TilePoints points, int64_t channels);
// 9 kernel places = Gᵀ u G: the transpose of TransformKernel.
void TransformKernelGradient(TilePoints points, float* const* places, int64_t channels);

}  // namespace ddprun
