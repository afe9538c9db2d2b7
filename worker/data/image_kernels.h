// The three loops in which scaling spends its time, for the processor at hand: with AVX2, or plain.
// Both give the same bytes. Pixels have four bytes; weights have kResampleBits behind the point.
// Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ddprun {

// value = (byte / 255 − mean) / deviation, in float as PyTorch computes it.
struct ChannelScale {
  std::array<float, 3> mean = {0, 0, 0};
  std::array<float, 3> deviation = {1, 1, 1};
  bool operator==(const ChannelScale&) const = default;
};

inline constexpr int kResampleBits = 22;
// Columns are done in blocks of this many bytes: as much may be read and written behind a row.
inline constexpr int kColumnBlockBytes = 32;

// How one row is scaled to `count` pixels.
struct RowWeights {
  int count = 0;
  int pairs = 0;                     // source pixels of an output pixel, divided by two
  const int* offsets = nullptr;      // in bytes, of the first source pixel of each output pixel
  const int32_t* weights = nullptr;  // `pairs` · 8 for each: of both pixels, once for each channel
};

struct ImageKernels {
  // Writes the output pixels `step` bytes apart; −4 mirrors.
  void (*scale_row)(const uint8_t* in, const RowWeights& row, uint8_t* out, int step);
  // One row of `bytes` bytes out of `taps` rows that lie `stride` bytes apart.
  void (*scale_column)(const uint8_t* in, size_t stride, const int32_t* weights, int taps,
                       int bytes, uint8_t* out);
  // One row of pixels into three planes, `plane` floats apart.
  void (*to_planes)(const uint8_t* in, int count, const ChannelScale& scale, ptrdiff_t plane,
                    float* out);
};

const ImageKernels& PlainImageKernels();
// The fastest for this processor.
const ImageKernels& BestImageKernels();

}  // namespace ddprun
