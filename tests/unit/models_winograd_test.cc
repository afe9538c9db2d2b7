// Winograd's convolution beside LibTorch's own, computed in float64: output and both gradients.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "worker/model/layers/winograd.h"
#include "worker/model/model.h"
#include "worker/trainer/operation_trace.h"

namespace ddprun {
namespace {

struct Results {
  at::Tensor output;
  at::Tensor input_gradient;
  at::Tensor weight_gradient;
};

using Convolution = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

Results Differentiate(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& gradient,
                      const Convolution& convolution) {
  const at::Tensor x = input.detach().clone().requires_grad_();
  const at::Tensor w = weight.detach().clone().requires_grad_();
  const at::Tensor y = convolution(x, w);
  y.backward(gradient);
  return {y.detach(), x.grad(), w.grad()};
}

at::Tensor Direct(const at::Tensor& input, const at::Tensor& weight) {
  return at::conv2d(input, weight, {}, {1, 1}, {1, 1});
}

double Distance(const at::Tensor& a, const at::Tensor& exact) {
  return ((a.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

// n, c, o, h, w
using Shape = std::array<int64_t, 5>;

class WinogradTest : public testing::TestWithParam<Shape> {
 protected:
  WinogradTest() {
    at::manual_seed(3);
    const auto [n, c, o, h, w] = GetParam();
    input_ = at::randn({n, c, h, w}).contiguous(at::MemoryFormat::ChannelsLast);
    weight_ = at::randn({o, c, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast);
    gradient_ = at::randn({n, o, h, w}).contiguous(at::MemoryFormat::ChannelsLast);
  }
  at::Tensor input_, weight_, gradient_;
};

// Even and odd sides, sides smaller than a tile, more rows of tiles than go through at once and
// not.
INSTANTIATE_TEST_SUITE_P(Shapes, WinogradTest,
                         testing::Values(Shape{2, 16, 32, 8, 8}, Shape{3, 32, 16, 7, 5},
                                         Shape{1, 16, 16, 1, 1}, Shape{5, 48, 16, 3, 2},
                                         Shape{40, 16, 16, 4, 6}, Shape{2, 16, 16, 33, 40},
                                         Shape{67, 64, 64, 2, 3}, Shape{2, 16, 16, 70, 530}));

TEST_P(WinogradTest, OutputAndGradientsAreThoseOfTheDirectForm) {
  ASSERT_TRUE(WinogradApplies(input_, weight_));
  const Results ours = Differentiate(input_, weight_, gradient_, WinogradConvolution);
  const Results exact = Differentiate(input_.to(at::kDouble), weight_.to(at::kDouble),
                                      gradient_.to(at::kDouble), Direct);
  EXPECT_LT(Distance(ours.output, exact.output), 1e-6);
  EXPECT_LT(Distance(ours.input_gradient, exact.input_gradient), 1e-6);
  EXPECT_LT(Distance(ours.weight_gradient, exact.weight_gradient), 1e-6);
  EXPECT_TRUE(ours.output.is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_P(WinogradTest, TheSameBitsInAnyMemoryOrderAndEachTime) {
  const Results first = Differentiate(input_, weight_, gradient_, WinogradConvolution);
  const Results second = Differentiate(input_.contiguous(), weight_.contiguous(),
                                       gradient_.contiguous(), WinogradConvolution);
  EXPECT_TRUE(at::equal(first.output, second.output));
  EXPECT_TRUE(at::equal(first.input_gradient, second.input_gradient));
  EXPECT_TRUE(at::equal(first.weight_gradient, second.weight_gradient));
}

TEST(WinogradApplies, ToFloat32OutsideOfAutocastWithWholeGroupsOfChannels) {
  const at::Tensor input = at::zeros({1, 16, 4, 4});
  const at::Tensor weight = at::zeros({16, 16, 3, 3});
  EXPECT_TRUE(WinogradApplies(input, weight));
  EXPECT_FALSE(WinogradApplies(input.to(at::kBFloat16), weight.to(at::kBFloat16)));
  EXPECT_FALSE(WinogradApplies(at::zeros({1, 3, 4, 4}), at::zeros({16, 3, 3, 3})));
  EXPECT_FALSE(WinogradApplies(input, at::zeros({10, 16, 3, 3})));
  EXPECT_FALSE(WinogradApplies(at::zeros({0, 16, 4, 4}), weight));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_FALSE(WinogradApplies(input, weight));
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

// Rows of tiles that write the same pixels are worked on by several threads.
TEST_P(WinogradTest, TheSameBitsWhateverTheNumberOfThreads) {
  const int before = at::get_num_threads();
  const Results one = Differentiate(input_, weight_, gradient_, WinogradConvolution);
  at::set_num_threads(3);
  const Results three = Differentiate(input_, weight_, gradient_, WinogradConvolution);
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(one.output, three.output));
  EXPECT_TRUE(at::equal(one.input_gradient, three.input_gradient));
  EXPECT_TRUE(at::equal(one.weight_gradient, three.weight_gradient));
}

// A gradient that is not asked for is not worked out, and the other one is the same.
TEST(WinogradGradients, OfTheWeightAloneWhereTheInputWantsNone) {
  at::manual_seed(3);
  const at::Tensor input = at::randn({2, 16, 6, 6});
  at::Tensor weight = at::randn({16, 16, 3, 3}).requires_grad_();
  WinogradConvolution(input, weight).sum().backward();
  const at::Tensor alone = weight.grad().clone();
  weight.mutable_grad() = at::Tensor();
  WinogradConvolution(input.clone().requires_grad_(), weight).sum().backward();
  EXPECT_TRUE(at::equal(alone, weight.grad()));
}

TEST(WinogradGradients, ASecondDerivativeIsRefused) {
  at::Tensor weight = at::randn({16, 16, 3, 3}).requires_grad_();
  const at::Tensor sum = WinogradConvolution(at::randn({1, 16, 4, 4}), weight).sum();
  EXPECT_THROW(
      torch::autograd::grad({sum}, {weight}, {}, /*retain_graph=*/true, /*create_graph=*/true),
      c10::Error);
}

// What looks for numbers that are not finite tells the operation with its weight, and no step of
// it.
TEST(WinogradTrace, IsOneConvolutionWithItsWeight) {
  const std::vector<NamedTensor> parameters = {
      {"layer1.0.conv1.weight", at::full({16, 16, 3, 3}, 1e38)}};
  const OperationTrace trace(parameters);
  WinogradConvolution(at::ones({1, 16, 4, 4}), parameters[0].tensor);
  EXPECT_EQ(trace.FirstNonFinite(), "conv2d with layer1.0.conv1.weight");
}

// The key decides, and a whole network is as near to the direct form as roundings are.
TEST(WinogradResNet, IsTheNetworkThatItIsWithoutIt) {
  std::vector<at::Tensor> outputs;
  for (const char* winograd : {"auto", "off"}) {
    TrainConfig config;
    config.model_name = "resnet18";
    config.performance_winograd = winograd;
    at::manual_seed(7);
    absl::StatusOr<Model> model =
        CreateModel({config, {.input_shape = {3, 16, 16}, .classes = 10}});
    ASSERT_TRUE(model.ok()) << model.status();
    model->Train(false);
    const at::NoGradGuard no_grad;
    outputs.push_back(model->Forward(at::randn({4, 3, 16, 16}), 0, model->size()));
  }
  EXPECT_FALSE(at::equal(outputs[0], outputs[1]));
  EXPECT_LT(Distance(outputs[0], outputs[1].to(at::kDouble)), 1e-5);
}

}  // namespace
}  // namespace ddprun
