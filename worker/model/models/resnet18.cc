// resnet18: see layers/resnet.h.
#include "worker/model/layers/resnet.h"

namespace ddprun {
namespace {

absl::StatusOr<Model> MakeResNet18(const ModelContext& context) {
  return MakeResNet(context, {.bottleneck = false, .blocks = {2, 2, 2, 2}});
}

}  // namespace

extern const ModelEntry model_resnet18;
const ModelEntry model_resnet18 = {&MakeResNet18};

}  // namespace ddprun
