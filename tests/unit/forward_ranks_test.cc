// The forward side of an update among forked ranks over Gloo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/gloo_ranks.h"
#include "worker/data/dataset.h"
#include "worker/trainer/loss_weights.h"

namespace ddprun {
namespace {

using at::Tensor;
using testing::Each;

// TR47: the mean over ranks of the weighted losses, and of their gradients, is that of the mean
// over all valid targets, also when a rank has none.
TEST(ForwardRanks, LossesAreWeightedByTheValidTargetsOfAllRanks) {
  const auto results = RunOverGloo(3, [](Communicator& communicator) -> std::string {
    torch::manual_seed(5);
    const Tensor scores = torch::randn({9, 4}, at::requires_grad());
    Tensor targets = at::full({9}, kIgnoredTarget, at::kLong);
    for (int64_t i : {0, 1, 2, 4}) targets[i] = i % 4;
    const auto mean = [](const Tensor& output, const Tensor& target) {
      return at::cross_entropy_loss(output, target, {}, at::Reduction::Mean, kIgnoredTarget, 0.0);
    };
    mean(scores, targets).backward();
    const Tensor expected = scores.grad().clone();
    scores.mutable_grad().zero_();
    const int64_t first = 3 * communicator.rank();
    const Tensor mine = targets.slice(0, first, first + 3);
    const auto weights = LossWeights::OfTargets({mine}, &communicator);
    if (!weights.ok()) return weights.status().ToString();
    const Tensor part = weights->Apply(mean(scores.slice(0, first, first + 3), mine), 0);
    part.backward();
    Tensor sums = at::cat({scores.grad().reshape({-1}), part.detach().reshape({1})});
    const auto status = communicator
                            .AllReduce(sums.data_ptr(), static_cast<size_t>(sums.numel()),
                                       DataType::kFloat32, ReduceOp::kAvg)
                            ->Wait();
    if (!status.ok()) return status.ToString();
    if (!at::allclose(sums.slice(0, 0, 36), expected.reshape({-1}), 1e-5, 1e-7)) return "gradients";
    const double loss = mean(scores, targets).item<double>();
    return std::abs(sums[36].item<double>() - loss) < 1e-6 ? "" : "loss";
  });
  EXPECT_THAT(results, Each(""));
}

}  // namespace
}  // namespace ddprun
