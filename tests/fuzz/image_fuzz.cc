// libFuzzer target: pictures. What decodes wholly decodes to the same pixels in part, and can be
// scaled.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "worker/data/image_crop.h"
#include "worker/data/image_decode.h"
#include "worker/data/image_resample.h"

namespace {

// Small, so that thousands of inputs a second are tried.
constexpr int64_t kPixelsMax = 1 << 14;

void ExpectSamePixels(const ddprun::RgbxImage& whole, const ddprun::RgbxImage& part,
                      const ddprun::PixelBox& box) {
  for (int y = 0; y < box.height; ++y) {
    for (int x = 0; x < box.width; ++x) {
      const uint8_t* const got = part.row(y) + x * 4;
      if (!std::equal(got, got + 3, whole.row(box.top + y) + (box.left + x) * 4)) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ddprun;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto picture = ReadImageSize(bytes, kPixelsMax);
  if (!picture.ok()) return 0;
  RgbxImage whole;
  const bool complete =
      DecodeImage(bytes, {0, 0, picture->width, picture->height}, &whole, kPixelsMax).ok();
  SampleRandom random(size);
  const CropPlan plan = PlanRandomCrop(*picture, 1 + random.Below(40), random);
  ImageResampler resampler;
  const PixelBox needed = resampler.Prepare(plan);
  RgbxImage part;
  const bool decoded = DecodeImage(bytes, needed, &part, kPixelsMax).ok();
  if (complete && !decoded) std::abort();
  if (complete) ExpectSamePixels(whole, part, needed);
  if (!decoded) return 0;
  std::vector<float> out(static_cast<size_t>(plan.width) * static_cast<size_t>(plan.height) * 3);
  resampler.Run(part, ChannelScale(), out.data());
  for (const float value : out) {
    if (!(value >= 0 && value <= 1)) std::abort();
  }
  return 0;
}
