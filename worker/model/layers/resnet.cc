#include "worker/model/layers/resnet.h"

#include "absl/strings/str_cat.h"
#include "worker/model/layers/batch_norm.h"
#include "worker/model/layers/classes.h"
#include "worker/model/layers/winograd.h"

namespace ddprun {
namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;
constexpr int64_t kStemPlanes = 64;
constexpr int64_t kBottleneckExpansion = 4;
// With stem = "auto": images up to this many pixels a side get the stem for small ones.
constexpr int64_t kSmallImageMax = 64;

torch::nn::Conv2d Convolution(int64_t inputs, int64_t outputs, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(inputs, outputs, kernel)
                               .stride(stride)
                               .padding(kernel / 2)
                               .bias(false));
}

class Stem : public Block {
 public:
  Stem(int64_t channels, bool small) : small_(small) {
    conv1_ =
        register_module("conv1", Convolution(channels, kStemPlanes, small ? 3 : 7, small ? 1 : 2));
    bn1_ = register_module("bn1", std::make_shared<BatchNorm2d>(kStemPlanes));
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor out = bn1_->forward(conv1_(input.contiguous(kChannelsLast))).relu_();
    return small_ ? out : at::max_pool2d(out, {3, 3}, {2, 2}, {1, 1});
  }

 private:
  const bool small_;
  torch::nn::Conv2d conv1_{nullptr};
  std::shared_ptr<BatchNorm2d> bn1_;
};

struct ResidualSizes {
  int64_t inputs = 0;
  int64_t planes = 0;
  int64_t outputs = 0;
  int64_t stride = 1;
  bool winograd = true;  // where it applies
};

// Two or three convolutions beside a shortcut, which is a 1×1 convolution where the shape changes.
// ReLU and the sum are done in place: batch norm needs its input for the gradient, not its output.
class Residual : public Block {
 public:
  Residual(const ResidualSizes& sizes, bool bottleneck) : winograd_(sizes.winograd) {
    // The generator is drawn from in this order: the shortcut first. It is registered last.
    torch::nn::Conv2d shortcut{nullptr};
    if (sizes.stride != 1 || sizes.inputs != sizes.outputs) {
      shortcut = Convolution(sizes.inputs, sizes.outputs, 1, sizes.stride);
    }
    if (bottleneck) {
      Add(Convolution(sizes.inputs, sizes.planes, 1, 1), sizes.planes);
      Add(Convolution(sizes.planes, sizes.planes, 3, sizes.stride), sizes.planes);
      Add(Convolution(sizes.planes, sizes.outputs, 1, 1), sizes.outputs);
    } else {
      Add(Convolution(sizes.inputs, sizes.planes, 3, sizes.stride), sizes.planes);
      Add(Convolution(sizes.planes, sizes.planes, 3, 1), sizes.planes);
    }
    if (shortcut.is_empty()) return;
    downsample_ = register_module("downsample", std::make_shared<torch::nn::Module>());
    shortcut_ = downsample_->register_module("0", shortcut);
    shortcut_norm_ =
        downsample_->register_module("1", std::make_shared<BatchNorm2d>(sizes.outputs));
  }

  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor out = input;
    for (size_t i = 0; i < convolutions_.size(); ++i) {
      out = norms_[i]->forward(Convolve(convolutions_[i], out));
      if (i + 1 < convolutions_.size()) out.relu_();
    }
    out += shortcut_.is_empty() ? input : shortcut_norm_->forward(shortcut_(input));
    return out.relu_();
  }

 private:
  void Add(torch::nn::Conv2d convolution, int64_t outputs) {
    const size_t number = convolutions_.size() + 1;
    convolutions_.push_back(register_module(absl::StrCat("conv", number), std::move(convolution)));
    norms_.push_back(
        register_module(absl::StrCat("bn", number), std::make_shared<BatchNorm2d>(outputs)));
  }

  at::Tensor Convolve(torch::nn::Conv2d& convolution, const at::Tensor& input) const {
    const at::Tensor& weight = convolution->weight;
    const bool plain = weight.size(2) == 3 && convolution->options.stride()->front() == 1;
    if (winograd_ && plain && WinogradApplies(input, weight)) {
      return WinogradConvolution(input, weight);
    }
    return convolution(input);
  }

  const bool winograd_;
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<std::shared_ptr<BatchNorm2d>> norms_;
  std::shared_ptr<torch::nn::Module> downsample_;
  torch::nn::Conv2d shortcut_{nullptr};
  std::shared_ptr<BatchNorm2d> shortcut_norm_;
};

class Head : public Block {
 public:
  Head(int64_t inputs, int64_t classes)
      : fc_(register_module("fc", torch::nn::Linear(inputs, classes))) {}
  at::Tensor forward(const at::Tensor& input) override {
    return fc_(at::flatten(at::adaptive_avg_pool2d(input, {1, 1}), 1));
  }

 private:
  torch::nn::Linear fc_;
};

// What torchvision does after construction, in the order of modules(): the first draws of all
// convolutions are thrown away.
void DrawConvolutionsAgain(const std::vector<NamedBlock>& blocks) {
  const at::NoGradGuard no_grad;
  for (const NamedBlock& block : blocks) {
    for (const auto& module : block.block->modules()) {
      auto* convolution = module->as<torch::nn::Conv2d>();
      if (convolution == nullptr) continue;
      at::Tensor& weight = convolution->weight;
      torch::nn::init::kaiming_normal_(weight, 0, torch::kFanOut, torch::kReLU);
      weight.set_data(weight.contiguous(kChannelsLast));
    }
  }
}

}  // namespace

absl::StatusOr<Model> MakeResNet(const ModelContext& context, const ResNetShape& shape) {
  const SampleSpec& data = context.data;
  if (absl::Status status = CheckImages(context); !status.ok()) return status;
  absl::StatusOr<int64_t> classes = ChooseClasses(context);
  if (!classes.ok()) return classes.status();
  const std::string& stem = context.config.model_stem;
  const bool small =
      stem == "cifar" ||
      (stem == "auto" && std::max(data.input_shape[1], data.input_shape[2]) <= kSmallImageMax);
  std::vector<NamedBlock> blocks = {{"", std::make_shared<Stem>(data.input_shape[0], small)}};
  const int64_t expansion = shape.bottleneck ? kBottleneckExpansion : 1;
  ResidualSizes sizes = {.inputs = kStemPlanes,
                         .winograd = context.config.performance_winograd == "auto"};
  for (size_t layer = 0; layer < shape.blocks.size(); ++layer) {
    sizes.planes = kStemPlanes << layer;
    sizes.outputs = sizes.planes * expansion;
    for (int i = 0; i < shape.blocks[layer]; ++i) {
      sizes.stride = layer > 0 && i == 0 ? 2 : 1;
      blocks.push_back({absl::StrCat("layer", layer + 1, ".", i),
                        std::make_shared<Residual>(sizes, shape.bottleneck)});
      sizes.inputs = sizes.outputs;
    }
  }
  blocks.push_back({"", std::make_shared<Head>(sizes.outputs, *classes)});
  DrawConvolutionsAgain(blocks);
  return Model(std::move(blocks));
}

}  // namespace ddprun
