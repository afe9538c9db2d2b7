#include "worker/model/layers/winograd.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <vector>

#include "worker/model/layers/winograd_tiles.h"

namespace ddprun {
namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;
constexpr int64_t kKernelSide = 3;
// Tiles that go through the matrix products at once: enough rows for them to be fast, few enough
// for what lies between the steps to stay in the cache.
constexpr int64_t kTilesAtOnce = 256;

// Images in channels_last order, cut into 2×2 tiles of the output.
struct Tiling {
  int64_t images, height, width, rows, columns;
  explicit Tiling(const at::Tensor& input)
      : images(input.size(0)),
        height(input.size(2)),
        width(input.size(3)),
        rows((height + 1) / 2),
        columns((width + 1) / 2) {}
  int64_t tiles() const { return rows * columns; }  // of an image
  int64_t images_at_once() const {
    return std::clamp<int64_t>(kTilesAtOnce / std::max<int64_t>(1, tiles()), 1, images);
  }
};

// The pixels of one image, for tiles of `side`×`side` that begin `before` pixels above and left of
// their 2×2 tile of the output. Outside of the image stands `outside`.
template <typename Number, int kSide, int kBefore>
class Pixels {
 public:
  Pixels(const Tiling& tiling, Number* image, int64_t channels, Number* outside)
      : tiling_(tiling), image_(image), channels_(channels), outside_(outside) {}
  Number* const* Of(int64_t tile) {
    const int64_t top = tile / tiling_.columns * 2 - kBefore;
    const int64_t left = tile % tiling_.columns * 2 - kBefore;
    for (int64_t i = 0; i < kSide; ++i) {
      for (int64_t j = 0; j < kSide; ++j) {
        const int64_t y = top + i;
        const int64_t x = left + j;
        const bool inside = y >= 0 && y < tiling_.height && x >= 0 && x < tiling_.width;
        pixels_[i * kSide + j] = inside ? image_ + (y * tiling_.width + x) * channels_ : outside_;
      }
    }
    return pixels_;
  }

 private:
  const Tiling& tiling_;
  Number* const image_;
  const int64_t channels_;
  Number* const outside_;
  Number* pixels_[kSide * kSide];
};

// One block of images on its way: which ones, and their transformed tiles {16, tiles, channels}.
struct ImageBlock {
  int64_t first = 0;
  int64_t count = 0;
};

at::Tensor EmptyPoints(const Tiling& tiling, const ImageBlock& block, int64_t channels) {
  return at::empty({kWinogradPoints, block.count * tiling.tiles(), channels}, at::kFloat);
}

// Calls use(image, tile of the image, points of the tile) for all tiles of the block.
template <typename Number, int kSide, int kBefore, typename Use>
void ForEachTile(const Tiling& tiling, const ImageBlock& block, Number* images,
                 const at::Tensor& points, const Use& use) {
  const int64_t channels = points.size(2);
  const int64_t stride = points.stride(0);
  auto* const data = points.data_ptr<float>();
  at::parallel_for(0, block.count, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> outside(static_cast<size_t>(channels), 0.0F);
    for (int64_t i = begin; i < end; ++i) {
      Number* const image = images + (block.first + i) * tiling.height * tiling.width * channels;
      Pixels<Number, kSide, kBefore> pixels(tiling, image, channels, outside.data());
      float* at = data + i * tiling.tiles() * channels;
      for (int64_t tile = 0; tile < tiling.tiles(); ++tile, at += channels) {
        use(pixels.Of(tile), TilePoints{at, stride}, channels);
      }
    }
  });
}

at::Tensor InputPoints(const Tiling& tiling, const ImageBlock& block, const at::Tensor& input) {
  at::Tensor points = EmptyPoints(tiling, block, input.size(1));
  ForEachTile<const float, 4, 1>(tiling, block, input.const_data_ptr<float>(), points,
                                 TransformInput);
  return points;
}

at::Tensor OutputGradientPoints(const Tiling& tiling, const ImageBlock& block,
                                const at::Tensor& gradient) {
  at::Tensor points = EmptyPoints(tiling, block, gradient.size(1));
  ForEachTile<const float, 2, 0>(tiling, block, gradient.const_data_ptr<float>(), points,
                                 TransformOutputGradient);
  return points;
}

template <typename Number>
void KernelPlaces(Number* kernel, int64_t channels, Number** places) {
  for (int64_t k = 0; k < kKernelSide * kKernelSide; ++k) places[k] = kernel + k * channels;
}

// {16, o, c}
at::Tensor KernelPoints(const at::Tensor& weight) {
  const at::Tensor kernels = weight.contiguous(kChannelsLast);
  const int64_t outputs = weight.size(0);
  const int64_t channels = weight.size(1);
  at::Tensor points = at::empty({kWinogradPoints, outputs, channels}, at::kFloat);
  const auto* from = kernels.const_data_ptr<float>();
  auto* to = points.data_ptr<float>();
  at::parallel_for(0, outputs, 1, [&](int64_t begin, int64_t end) {
    const float* places[kKernelSide * kKernelSide];
    for (int64_t o = begin; o < end; ++o) {
      KernelPlaces(from + o * kKernelSide * kKernelSide * channels, channels, places);
      TransformKernel(places, {to + o * channels, outputs * channels}, channels);
    }
  });
  return points;
}

at::Tensor KernelGradient(const at::Tensor& points) {
  const int64_t outputs = points.size(1);
  const int64_t channels = points.size(2);
  at::Tensor gradient = at::empty({outputs, channels, kKernelSide, kKernelSide},
                                  at::TensorOptions(at::kFloat).memory_format(kChannelsLast));
  auto* from = points.data_ptr<float>();
  auto* to = gradient.data_ptr<float>();
  at::parallel_for(0, outputs, 1, [&](int64_t begin, int64_t end) {
    float* places[kKernelSide * kKernelSide];
    for (int64_t o = begin; o < end; ++o) {
      KernelPlaces(to + o * kKernelSide * kKernelSide * channels, channels, places);
      TransformKernelGradient({from + o * channels, outputs * channels}, places, channels);
    }
  });
  return gradient;
}

template <typename Use>
void ForEachBlock(const Tiling& tiling, const Use& use) {
  const int64_t step = tiling.images_at_once();
  for (int64_t first = 0; first < tiling.images; first += step) {
    use(ImageBlock{first, std::min(step, tiling.images - first)});
  }
}

at::Tensor Forward(const at::Tensor& input, const at::Tensor& weight) {
  const Tiling tiling(input);
  const at::Tensor kernel = KernelPoints(weight).transpose(1, 2);
  at::Tensor output = at::empty({input.size(0), weight.size(0), input.size(2), input.size(3)},
                                at::TensorOptions(at::kFloat).memory_format(kChannelsLast));
  ForEachBlock(tiling, [&](const ImageBlock& block) {
    at::Tensor points = at::bmm(InputPoints(tiling, block, input), kernel);
    ForEachTile<float, 2, 0>(tiling, block, output.data_ptr<float>(), points,
                             [](float* const* pixels, TilePoints from, int64_t channels) {
                               TransformOutput(from, pixels, channels);
                             });
  });
  return output;
}

// Of the input, of the weight; undefined where not wanted.
struct Gradients {
  at::Tensor input;
  at::Tensor weight;
};

Gradients Backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                   bool of_input, bool of_weight) {
  const Tiling tiling(input);
  Gradients result;
  at::Tensor kernel;
  if (of_input) {
    kernel = KernelPoints(weight);
    result.input = at::zeros_like(input, at::MemoryFormat::Preserve);
  }
  at::Tensor kernel_gradient;
  ForEachBlock(tiling, [&](const ImageBlock& block) {
    const at::Tensor points = OutputGradientPoints(tiling, block, gradient);
    if (of_weight) {
      const at::Tensor inputs = InputPoints(tiling, block, input);
      if (kernel_gradient.defined()) {
        kernel_gradient.baddbmm_(points.transpose(1, 2), inputs);
      } else {
        kernel_gradient = at::bmm(points.transpose(1, 2), inputs);
      }
    }
    if (of_input) {
      ForEachTile<float, 4, 1>(tiling, block, result.input.data_ptr<float>(),
                               at::bmm(points, kernel),
                               [](float* const* pixels, TilePoints from, int64_t channels) {
                                 AddInputGradient(from, pixels, channels);
                               });
    }
  });
  if (of_weight) result.weight = KernelGradient(kernel_gradient);
  return result;
}

class WinogradFunction : public torch::autograd::Function<WinogradFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight) {
    const at::Tensor images = input.contiguous(kChannelsLast);
    context->save_for_backward({images, weight});
    return Forward(images, weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const Gradients result = Backward(gradients[0].contiguous(kChannelsLast), saved[0], saved[1],
                                      context->needs_input_grad(0), context->needs_input_grad(1));
    return {result.input, result.weight};
  }
};

}  // namespace

bool WinogradApplies(const at::Tensor& input, const at::Tensor& weight) {
  return input.is_cpu() && input.scalar_type() == at::kFloat &&
         weight.scalar_type() == at::kFloat && input.size(0) > 0 &&
         weight.size(0) % kWinogradLanes == 0 && weight.size(1) % kWinogradLanes == 0 &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

at::Tensor WinogradConvolution(const at::Tensor& input, const at::Tensor& weight) {
  return WinogradFunction::apply(input, weight);
}

}  // namespace ddprun
