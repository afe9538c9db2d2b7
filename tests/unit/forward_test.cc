// The forward side of an update in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/data/dataset.h"
#include "worker/trainer/loss_weights.h"
#include "worker/trainer/plan.h"

namespace ddprun {
namespace {

using at::Tensor;

float Part(const LossWeights& weights, float mean, int micro_batch) {
  return weights.Apply(at::scalar_tensor(mean), micro_batch).item<float>();
}

TEST(LossWeights, EqualMicroBatchesCountEqually) {
  const Tensor loss = at::scalar_tensor(3.0F);
  EXPECT_TRUE(LossWeights::OfSizes({8}).Apply(loss, 0).is_same(loss)) << "no operation at all";
  const LossWeights three = LossWeights::OfSizes({8, 8, 8});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Part(three, 3.0F, i), 1.0F);
}

// The tail of an epoch, drop_last = false: 8 + 8 + 4 samples.
TEST(LossWeights, AShortMicroBatchCountsLess) {
  const LossWeights weights = LossWeights::OfSizes({8, 8, 4});
  EXPECT_FLOAT_EQ(Part(weights, 1.0F, 0), 0.4F);
  EXPECT_FLOAT_EQ(Part(weights, 1.0F, 2), 0.2F);
}

// TR47: gradients over micro-batches with ignored targets are those of the mean over all that
// count.
TEST(LossWeights, IgnoredTargetsAreNotCounted) {
  torch::manual_seed(3);
  const Tensor scores = torch::randn({6, 5}, at::requires_grad());
  const Tensor targets =
      torch::tensor(std::vector<int64_t>{1, kIgnoredTarget, 4, kIgnoredTarget, kIgnoredTarget, 2});
  const auto mean = [](const Tensor& output, const Tensor& target) {
    return at::cross_entropy_loss(output, target, {}, at::Reduction::Mean, kIgnoredTarget, 0.1);
  };
  mean(scores, targets).backward();
  const Tensor expected = scores.grad().clone();
  scores.mutable_grad().zero_();
  // Micro-batches with 1, 1 and 1 valid targets; then with 2, none and 1.
  for (const auto& cuts : {std::vector<int64_t>{0, 2, 4, 6}, std::vector<int64_t>{0, 3, 5, 6}}) {
    std::vector<Tensor> parts;
    for (size_t i = 0; i < 3; ++i) parts.push_back(targets.slice(0, cuts[i], cuts[i + 1]));
    const auto weights = LossWeights::OfTargets(parts, nullptr);
    ASSERT_TRUE(weights.ok()) << weights.status();
    double sum = 0;
    for (size_t i = 0; i < 3; ++i) {
      const Tensor part = weights->Apply(mean(scores.slice(0, cuts[i], cuts[i + 1]), parts[i]),
                                         static_cast<int>(i));
      part.backward();
      sum += part.item<double>();
    }
    EXPECT_NEAR(sum, mean(scores, targets).item<double>(), 1e-6);
    EXPECT_TRUE(at::allclose(scores.grad(), expected, 1e-5, 1e-7)) << scores.grad();
    scores.mutable_grad().zero_();
  }
}

TEST(LossWeights, WithoutAnyValidTargetLossAndGradientsAreZero) {
  const Tensor scores = torch::randn({4, 5}, at::requires_grad());
  const Tensor targets = at::full({4}, kIgnoredTarget, at::kLong);
  const auto weights = LossWeights::OfTargets({targets}, nullptr);
  ASSERT_TRUE(weights.ok());
  for (double smoothing : {0.0, 0.1}) {
    const Tensor mean =
        at::cross_entropy_loss(scores, targets, {}, at::Reduction::Mean, kIgnoredTarget, smoothing);
    ASSERT_TRUE(mean.isnan().item<bool>());
    const Tensor part = weights->Apply(mean, 0);
    part.backward();
    EXPECT_EQ(part.item<float>(), 0);
    EXPECT_EQ(scores.grad().abs().sum().item<float>(), 0);
  }
}

// Which targets count is known only from the data, so all of them are there before the first loss.
TEST(Plan, TargetsThatMustBeCountedAreLoadedBeforeTheFirstForward) {
  EXPECT_EQ(PlanText(PlanDataParallel(3, 2, /*count_targets=*/true)),
            "load0 load1 count forward0[0,3) loss0 backward0 forward1[0,3) loss1 backward1! reduce "
            "update");
}

}  // namespace
}  // namespace ddprun
