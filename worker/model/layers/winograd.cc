#include "worker/model/layers/winograd.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

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

// Images in channels_last order, cut into 2×2 tiles of the output. The rows of tiles of all images
// are numbered through.
struct Tiling {
  int64_t images, height, width, rows, columns;
  explicit Tiling(const at::Tensor& input)
      : images(input.size(0)),
        height(input.size(2)),
        width(input.size(3)),
        rows((height + 1) / 2),
        columns((width + 1) / 2) {}
  int64_t all_rows() const { return images * rows; }
  int64_t rows_at_once() const {
    return std::clamp<int64_t>(kTilesAtOnce / std::max<int64_t>(1, columns), 1,
                               std::max<int64_t>(1, all_rows()));
  }
};

// The pixels of one image, for tiles of `side`×`side` that begin `before` pixels above and left of
// their 2×2 tile of the output. Outside of the image stands `outside`.
template <typename Number, int kSide, int kBefore>
class Pixels {
 public:
  Pixels(const Tiling& tiling, Number* image, int64_t channels, Number* outside)
      : tiling_(tiling), image_(image), channels_(channels), outside_(outside) {}
  Number* const* Of(int64_t row, int64_t column) {
    const int64_t top = row * 2 - kBefore;
    const int64_t left = column * 2 - kBefore;
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

// Some rows of tiles on their way: which ones.
struct Rows {
  int64_t first = 0;
  int64_t count = 0;
};

// {16, tiles, channels}
at::Tensor EmptyPoints(const Tiling& tiling, const Rows& rows, int64_t channels) {
  return at::empty({kWinogradPoints, rows.count * tiling.columns, channels}, at::kFloat);
}

// Calls use(pixels, points, channels) for all tiles of the rows. `kPasses`: 2 where a row of tiles
// writes pixels that the next one writes too: then every other row goes first, so that threads
// never meet, and the order of a pixel's sums is that of one thread.
template <typename Number, int kSide, int kBefore, int kPasses, typename Use>
void ForEachTile(const Tiling& tiling, const Rows& rows, Number* images, const at::Tensor& points,
                 const Use& use) {
  const int64_t channels = points.size(2);
  const int64_t stride = points.stride(0);
  auto* const data = points.data_ptr<float>();
  for (int64_t pass = 0; pass < kPasses; ++pass) {
    at::parallel_for(0, rows.count, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> outside(static_cast<size_t>(channels), 0.0F);
      for (int64_t i = begin; i < end; ++i) {
        if ((rows.first + i) % tiling.rows % kPasses != pass) continue;
        const int64_t number = (rows.first + i) / tiling.rows;
        Number* const image = images + number * tiling.height * tiling.width * channels;
        Pixels<Number, kSide, kBefore> pixels(tiling, image, channels, outside.data());
        float* at = data + i * tiling.columns * channels;
        for (int64_t column = 0; column < tiling.columns; ++column, at += channels) {
          use(pixels.Of((rows.first + i) % tiling.rows, column), TilePoints{at, stride}, channels);
        }
      }
    });
  }
}

at::Tensor InputPoints(const Tiling& tiling, const Rows& rows, const at::Tensor& input) {
  at::Tensor points = EmptyPoints(tiling, rows, input.size(1));
  ForEachTile<const float, 4, 1, 1>(tiling, rows, input.const_data_ptr<float>(), points,
                                    TransformInput);
  return points;
}

at::Tensor OutputGradientPoints(const Tiling& tiling, const Rows& rows,
                                const at::Tensor& gradient) {
  at::Tensor points = EmptyPoints(tiling, rows, gradient.size(1));
  ForEachTile<const float, 2, 0, 1>(tiling, rows, gradient.const_data_ptr<float>(), points,
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
void ForSomeRowsAtOnce(const Tiling& tiling, const Use& use) {
  const int64_t step = tiling.rows_at_once();
  for (int64_t first = 0; first < tiling.all_rows(); first += step) {
    use(Rows{first, std::min(step, tiling.all_rows() - first)});
  }
}

at::Tensor Forward(const at::Tensor& input, const at::Tensor& weight) {
  const Tiling tiling(input);
  const at::Tensor kernel = KernelPoints(weight).transpose(1, 2);
  at::Tensor output = at::empty({input.size(0), weight.size(0), input.size(2), input.size(3)},
                                at::TensorOptions(at::kFloat).memory_format(kChannelsLast));
  ForSomeRowsAtOnce(tiling, [&](const Rows& rows) {
    at::Tensor points = at::bmm(InputPoints(tiling, rows, input), kernel);
    ForEachTile<float, 2, 0, 1>(tiling, rows, output.data_ptr<float>(), points,
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
  ForSomeRowsAtOnce(tiling, [&](const Rows& rows) {
    const at::Tensor points = OutputGradientPoints(tiling, rows, gradient);
    if (of_weight) {
      const at::Tensor inputs = InputPoints(tiling, rows, input);
      if (kernel_gradient.defined()) {
        kernel_gradient.baddbmm_(points.transpose(1, 2), inputs);
      } else {
        kernel_gradient = at::bmm(points.transpose(1, 2), inputs);
      }
    }
    if (of_input) {
      ForEachTile<float, 4, 1, 2>(tiling, rows, result.input.data_ptr<float>(),
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
    TORCH_CHECK(
        !at::GradMode::is_enabled(),
        "Winograd's convolution has no second derivative; set performance.winograd = \"off\"");
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
  // What looks at operations (the search for numbers that are not finite, profilers) sees one, with
  // its weight, as for the direct form.
  at::RecordFunction record(at::RecordScope::FUNCTION);
  const c10::IValue inputs[] = {input, weight};
  if (record.isActive()) record.before("conv2d", c10::ArrayRef<const c10::IValue>(inputs, 2));
  at::Tensor output = WinogradFunction::apply(input, weight);
  if (record.needsOutputs()) record.setOutputs(std::vector<c10::IValue>(1, output));
  return output;
}

}  // namespace ddprun
