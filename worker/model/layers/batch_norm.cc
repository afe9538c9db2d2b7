#include "worker/model/layers/batch_norm.h"

namespace ddprun {

BatchNorm2d::BatchNorm2d(int64_t channels)
    : weight_(register_parameter("weight", at::ones({channels}))),
      bias_(register_parameter("bias", at::zeros({channels}))),
      running_mean_(register_buffer("running_mean", at::zeros({channels}))),
      running_var_(register_buffer("running_var", at::ones({channels}))),
      num_batches_tracked_(register_buffer("num_batches_tracked", at::zeros({}, at::kLong))) {}

at::Tensor BatchNorm2d::forward(const at::Tensor& input) {
  if (is_training()) {
    num_batches_tracked_.add_(1);
    if (function_) return function_(*this, input);
    TORCH_CHECK_VALUE(
        input.numel() > input.size(1),
        "batch norm has one value a channel and so no deviation: a batch of 1 needs a larger "
        "image, a larger [data] batch_size, or [parallel] sync_bn = \"on\" on several ranks");
  }
  return at::batch_norm(input, weight_, bias_, running_mean_, running_var_, is_training(),
                        kMomentum, kEpsilon, at::globalContext().userEnabledCuDNN());
}

}  // namespace ddprun
