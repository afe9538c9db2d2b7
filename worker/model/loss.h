// The default loss: cross-entropy with label smoothing, as torch.nn.functional.cross_entropy with
// ignore_index = −100.
#pragma once

#include <memory>

#include "worker/model/model.h"

namespace ddprun {

std::shared_ptr<Loss> MakeCrossEntropy(double label_smoothing);

}  // namespace ddprun
