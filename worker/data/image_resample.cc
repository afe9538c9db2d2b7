#include "worker/data/image_resample.h"

#include <algorithm>
#include <cmath>

namespace ddprun {
namespace {

// As Pillow rounds; below zero it does not matter.
int HalfUp(double value) {
  const double raised = value + 0.5;
  return static_cast<int>(raised);
}

}  // namespace

void FillResampleAxis(int source, int target, int first, int count, ResampleAxis* axis) {
  const double step = static_cast<double>(source) / target;
  const double reach = std::max(step, 1.0);  // half the width of the triangle
  const auto center = [&](int i) { return (first + i + 0.5) * step; };
  const auto low = [&](int i) { return std::max(0, HalfUp(center(i) - reach)); };
  const auto high = [&](int i) { return std::min(source, HalfUp(center(i) + reach)); };
  int most = 0;
  for (int i = 0; i < count; ++i) most = std::max(most, high(i) - low(i));
  const int taps = (most + 1) / 2 * 2;  // where `source` is odd, perhaps one more than it has
  axis->taps = taps;
  axis->first.resize(static_cast<size_t>(count));
  axis->weights.assign(static_cast<size_t>(count) * static_cast<size_t>(taps), 0);
  axis->begin = source;
  axis->end = 0;
  std::vector<double> share(static_cast<size_t>(taps));
  for (int i = 0; i < count; ++i) {
    double sum = 0;
    for (int x = low(i); x < high(i); ++x) {
      const double distance = std::fabs((x - center(i) + 0.5) * (1.0 / reach));
      const double part = distance < 1.0 ? 1.0 - distance : 0.0;
      share[static_cast<size_t>(x - low(i))] = part;
      sum += part;
    }
    // Towards the end, begin further left with weights of 0, so that no tap lies outside.
    const int begin = std::max(0, std::min(low(i), source - taps));
    axis->first[static_cast<size_t>(i)] = begin;
    int32_t* const weights = axis->weights.data() + static_cast<ptrdiff_t>(i) * taps;
    for (int x = low(i); x < high(i); ++x) {
      const double part = sum != 0 ? share[static_cast<size_t>(x - low(i))] / sum : 0.0;
      weights[x - begin] = HalfUp(part * (1 << kResampleBits));
    }
    axis->begin = std::min(axis->begin, begin);
    axis->end = std::max(axis->end, std::min(source, begin + taps));
  }
}

PixelBox ImageResampler::Prepare(const CropPlan& plan) {
  plan_ = plan;
  FillResampleAxis(plan.source.width, plan.width, plan.window.left, plan.window.width, &across_);
  FillResampleAxis(plan.source.height, plan.height, plan.window.top, plan.window.height, &down_);
  offsets_ = across_.first;
  for (int& offset : offsets_) offset = (offset - across_.begin) * 4;
  wide_weights_.resize(across_.weights.size() * 4);
  for (size_t i = 0; i < wide_weights_.size(); ++i) wide_weights_[i] = across_.weights[i / 4];
  row_ = {plan.window.width, across_.taps / 2, offsets_.data(), wide_weights_.data()};
  return {plan.source.left + across_.begin, plan.source.top + down_.begin,
          across_.end - across_.begin, down_.end - down_.begin};
}

void ImageResampler::Run(const RgbxImage& image, const ChannelScale& scale, float* out) {
  line_.resize(static_cast<size_t>(plan_.window.width) * 4 + kColumnBlockBytes);
  const int shrink_down = plan_.source.height - plan_.height;
  const int shrink_across = plan_.source.width - plan_.width;
  if (shrink_down > 0 && shrink_down > 2 * shrink_across) {
    ColumnsFirst(image, scale, out);
  } else {
    RowsFirst(image, scale, out);
  }
}

void ImageResampler::RowsFirst(const RgbxImage& image, const ChannelScale& scale, float* out) {
  const int width = plan_.window.width;
  const auto bytes = static_cast<size_t>(width) * 4;
  const int lines = down_.end - down_.begin;
  // A tap of weight 0 may lie one line below the last.
  narrow_.resize(bytes * static_cast<size_t>(lines + 1) + kColumnBlockBytes);
  // Mirroring costs nothing here: a row is written from its end.
  const size_t begin = plan_.flip ? bytes - 4 : 0;
  for (int y = 0; y < lines; ++y) {
    kernels_.scale_row(image.row(y), row_, narrow_.data() + bytes * static_cast<size_t>(y) + begin,
                       plan_.flip ? -4 : 4);
  }
  const int height = plan_.window.height;
  for (int y = 0; y < height; ++y) {
    const auto first = static_cast<size_t>(down_.first[static_cast<size_t>(y)] - down_.begin);
    kernels_.scale_column(narrow_.data() + first * bytes, bytes,
                          down_.weights.data() + static_cast<ptrdiff_t>(y) * down_.taps, down_.taps,
                          static_cast<int>(bytes), line_.data());
    kernels_.to_planes(line_.data(), width, scale, static_cast<ptrdiff_t>(width) * height,
                       out + static_cast<ptrdiff_t>(y) * width);
  }
}

void ImageResampler::ColumnsFirst(const RgbxImage& image, const ChannelScale& scale, float* out) {
  const int width = plan_.window.width;
  const int height = plan_.window.height;
  const int source_bytes = (across_.end - across_.begin) * 4;
  // Behind it, a pixel of weight 0 may be read.
  wide_line_.resize(static_cast<size_t>(source_bytes) + kColumnBlockBytes);
  const ptrdiff_t begin = plan_.flip ? static_cast<ptrdiff_t>(width - 1) * 4 : 0;
  for (int y = 0; y < height; ++y) {
    const int first = down_.first[static_cast<size_t>(y)] - down_.begin;
    kernels_.scale_column(image.row(first), image.stride(),
                          down_.weights.data() + static_cast<ptrdiff_t>(y) * down_.taps, down_.taps,
                          source_bytes, wide_line_.data());
    kernels_.scale_row(wide_line_.data(), row_, line_.data() + begin, plan_.flip ? -4 : 4);
    kernels_.to_planes(line_.data(), width, scale, static_cast<ptrdiff_t>(width) * height,
                       out + static_cast<ptrdiff_t>(y) * width);
  }
}

}  // namespace ddprun
