// ResNets (He et al., "Deep Residual Learning for Image Recognition", 2015; version 1.5: where a
// bottleneck halves the image, its 3×3 convolution does). Names, function and initialisation are
// torchvision's, so that weights go both ways and a seed gives the same network.
//
// Blocks: the stem, each residual block ("layer1.0", …), the head. Weights of convolutions and
// activations lie in channels_last order: on a CPU a step of ResNet-18 takes a tenth less that way.
#pragma once

#include <array>

#include "absl/status/statusor.h"
#include "worker/model/model.h"

namespace ddprun {

struct ResNetShape {
  bool bottleneck = false;      // residual blocks of three convolutions, else of two
  std::array<int, 4> blocks{};  // residual blocks of each of the four layers
};

// Images of any size and number of channels. [model] stem, classes. INVALID_ARGUMENT when the data
// are no images with one class each.
absl::StatusOr<Model> MakeResNet(const ModelContext& context, const ResNetShape& shape);

}  // namespace ddprun
