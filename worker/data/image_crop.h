// Which part of a picture becomes a sample: torchvision's RandomResizedCrop and
// RandomHorizontalFlip for training, Resize of the shorter side and CenterCrop for evaluation.
// The distributions are torchvision's, with its default parameters; the draws are ours.
// Pure; any thread.
#pragma once

#include "worker/data/image_decode.h"
#include "worker/data/sample_random.h"

namespace ddprun {

// `source` of the picture is scaled to `width` x `height`; of that, `window` is the sample,
// mirrored left to right when `flip` is set.
struct CropPlan {
  PixelBox source;
  int width = 0;
  int height = 0;
  PixelBox window;
  bool flip = false;
};

// A part of 8 to 100 % of the area, with sides 3:4 to 4:3, anywhere; to `side` x `side`.
CropPlan PlanRandomCrop(const ImageSize& size, int side, SampleRandom& random);
// The whole picture, its shorter side scaled to `shorter`; the middle `side` x `side` of it.
// REQUIRES: shorter ≥ side.
CropPlan PlanCenterCrop(const ImageSize& size, int shorter, int side);

}  // namespace ddprun
