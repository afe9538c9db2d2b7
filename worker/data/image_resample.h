// Scaling of pictures as Pillow 13's resize with BILINEAR does it (a triangle filter that widens
// with the reduction, so every pixel of the source counts), byte for byte, and their way into a
// tensor: torchvision's ToTensor and Normalize.
//
// Pillow's steps: weights per output pixel in double, divided by their sum, rounded to 22 bits
// behind the point; rows and columns in two passes, each in 32-bit integers and rounded to bytes.
// Which pass is the first changes the last bit of some pixels. Rows are, but for pictures whose
// height shrinks by more than twice as many pixels as their width (older versions: always).
#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/image_crop.h"
#include "worker/data/image_decode.h"
#include "worker/data/image_kernels.h"

namespace ddprun {

// What models that were trained on ImageNet expect.
inline constexpr ChannelScale kImageNetScale = {{0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}};

// The weights of one side: output pixel i is the sum of `taps` source pixels from first[i] on.
struct ResampleAxis {
  int taps = 0;                  // equal for all, even; superfluous ones have weight 0
  std::vector<int> first;        // one for each output pixel
  std::vector<int32_t> weights;  // `taps` for each output pixel
  int begin = 0;                 // source pixels that count: [begin, end)
  int end = 0;
};

// Belongs to one thread, and is used again for each sample, so that its memory is kept.
class ImageResampler {
 public:
  explicit ImageResampler(const ImageKernels& kernels = BestImageKernels()) : kernels_(kernels) {}
  // What must be decoded for this plan.
  PixelBox Prepare(const CropPlan& plan);
  // `image` holds that box. Writes 3 planes of window.height x window.width.
  void Run(const RgbxImage& image, const ChannelScale& scale, float* out);

 private:
  void RowsFirst(const RgbxImage& image, const ChannelScale& scale, float* out);
  void ColumnsFirst(const RgbxImage& image, const ChannelScale& scale, float* out);

  const ImageKernels& kernels_;
  CropPlan plan_;
  ResampleAxis across_;
  ResampleAxis down_;
  RowWeights row_;
  std::vector<int> offsets_;           // what row_ points to
  std::vector<int32_t> wide_weights_;  // likewise
  std::vector<uint8_t> narrow_;        // RowsFirst: all rows at their final width
  std::vector<uint8_t> wide_line_;     // ColumnsFirst: one final row at its old width
  std::vector<uint8_t> line_;          // one finished row
};

// The weights for scaling `source` pixels to `target`, of which [first, first + count) are wanted.
void FillResampleAxis(int source, int target, int first, int count, ResampleAxis* axis);

}  // namespace ddprun
