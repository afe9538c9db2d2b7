// resnet50: see layers/resnet.h.
#include "worker/model/layers/resnet.h"

namespace ddprun {
namespace {

absl::StatusOr<Model> MakeResNet50(const ModelContext& context) {
  return MakeResNet(context, {.bottleneck = true, .blocks = {3, 4, 6, 3}});
}

}  // namespace

extern const ModelEntry model_resnet50;
const ModelEntry model_resnet50 = {&MakeResNet50};

}  // namespace ddprun
