#include "worker/data/image_crop.h"

#include <algorithm>
#include <cmath>

namespace ddprun {
namespace {

constexpr double kAreaMin = 0.08;
constexpr double kAreaMax = 1.0;
constexpr double kRatioMin = 3.0 / 4.0;
constexpr double kRatioMax = 4.0 / 3.0;
// Draws of area and ratio before the largest allowed part in the middle is taken instead.
constexpr int kTries = 10;

// Python's round: halves go to the even neighbour.
int RoundEven(double value) {
  return static_cast<int>(std::nearbyint(value));
}

PixelBox RandomBox(const ImageSize& size, SampleRandom& random) {
  const double area = static_cast<double>(size.width) * size.height;
  for (int i = 0; i < kTries; ++i) {
    const double part = area * random.Uniform(kAreaMin, kAreaMax);
    const double ratio = std::exp(random.Uniform(std::log(kRatioMin), std::log(kRatioMax)));
    const int width = RoundEven(std::sqrt(part * ratio));
    const int height = RoundEven(std::sqrt(part / ratio));
    if (width < 1 || height < 1 || width > size.width || height > size.height) continue;
    const auto top = static_cast<int>(random.Below(size.height - height + 1));
    return {static_cast<int>(random.Below(size.width - width + 1)), top, width, height};
  }
  int width = size.width;
  int height = size.height;
  const double ratio = static_cast<double>(width) / height;
  // At least one pixel: a picture of one row and a hundred columns would else give an empty box.
  if (ratio < kRatioMin) height = std::max(1, RoundEven(width / kRatioMin));
  if (ratio > kRatioMax) width = std::max(1, RoundEven(height * kRatioMax));
  return {(size.width - width) / 2, (size.height - height) / 2, width, height};
}

}  // namespace

CropPlan PlanRandomCrop(const ImageSize& size, int side, SampleRandom& random) {
  CropPlan plan;
  plan.source = RandomBox(size, random);
  plan.width = side;
  plan.height = side;
  plan.window = {0, 0, side, side};
  plan.flip = random.Uniform(0, 1) < 0.5;
  return plan;
}

CropPlan PlanCenterCrop(const ImageSize& size, int shorter, int side) {
  CropPlan plan;
  plan.source = {0, 0, size.width, size.height};
  const int64_t short_side = std::min(size.width, size.height);
  const int64_t long_side = std::max(size.width, size.height);
  const int longer = static_cast<int>(shorter * long_side / short_side);
  plan.width = size.width <= size.height ? shorter : longer;
  plan.height = size.width <= size.height ? longer : shorter;
  plan.window = {RoundEven((plan.width - side) / 2.0), RoundEven((plan.height - side) / 2.0), side,
                 side};
  return plan;
}

}  // namespace ddprun
