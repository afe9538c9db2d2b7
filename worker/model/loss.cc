#include "worker/model/loss.h"

namespace ddprun {
namespace {

class CrossEntropy : public Loss {
 public:
  explicit CrossEntropy(double label_smoothing) : label_smoothing_(label_smoothing) {}
  at::Tensor Compute(const at::Tensor& output, const at::Tensor& targets) override {
    // One row a target: {n, classes} as it is, {n, length, classes} by tokens.
    const at::Tensor scores = output.reshape({-1, output.size(-1)}).to(at::kFloat);
    return at::cross_entropy_loss(scores, targets.reshape({-1}), /*weight=*/{}, at::Reduction::Mean,
                                  kIgnoredTarget, label_smoothing_);
  }

 private:
  const double label_smoothing_;
};

}  // namespace

std::shared_ptr<Loss> MakeCrossEntropy(double label_smoothing) {
  return std::make_shared<CrossEntropy>(label_smoothing);
}

}  // namespace ddprun
