// The forward side of an update among forked ranks over Gloo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/gloo_ranks.h"
#include "worker/data/dataset.h"
#include "worker/trainer/loss_weights.h"
#include "worker/trainer/shared_buffers.h"

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

// Its buffer is changed by each batch, and the gradient of its weight holds what the buffer was.
class Gauge : public Block {
 public:
  Gauge() {
    weight_ = register_parameter("weight", at::ones({3}));
    level_ = register_buffer("level", at::zeros({3}));
  }
  Tensor forward(const Tensor& input) override {
    {
      const at::NoGradGuard no_grad;
      level_.add_(input.mean(0));
    }
    return input * weight_ * level_;
  }
  Tensor weight_;
  Tensor level_;
};

// Updates of two micro-batches whose values are 1, 2, … on rank 0 and 11, 12, … on rank 1. `when`:
// whether the buffers are sent before the forwards, or after the first one.
enum class Sent { kBeforeUpdate, kBeforeBackward };
std::string TrainWithABuffer(Communicator& communicator, Sent sent) {
  const auto gauge = std::make_shared<Gauge>();
  const Model model({{"gauge", gauge}});
  SharedBuffers shared(model, &communicator);
  const auto value = [](int rank, int batch) { return static_cast<float>(10 * rank + batch); };
  float level_of_first = 0;  // rank 0's, which both begin an update with
  for (int update = 0; update < 3; ++update) {
    float level = sent == Sent::kBeforeUpdate ? level_of_first : 0;
    if (sent == Sent::kBeforeUpdate && !shared.BeforeUpdate().ok()) return "cannot be sent";
    for (int batch = 2 * update + 1; batch <= 2 * update + 2; ++batch) {
      const float mine = value(communicator.rank(), batch);
      const Tensor output = gauge->forward(at::full({2, 3}, mine));
      level += mine;
      level_of_first += value(0, batch);
      if (sent == Sent::kBeforeBackward && !shared.BeforeUpdate().ok()) return "cannot be sent";
      gauge->weight_.mutable_grad() = Tensor();
      output.sum().backward();
      if (!gauge->weight_.grad().eq(2 * mine * level).all().item<bool>()) {
        return "the gradient is not that of the buffer in its forward";
      }
    }
  }
  return "";
}

// TR6: buffers come from rank 0 between two forwards, and no gradient is spoilt by it.
TEST(ForwardRanks, BuffersThatAreSentBetweenForwardsSpoilNoGradient) {
  EXPECT_THAT(RunOverGloo(2,
                          [](Communicator& communicator) {
                            return TrainWithABuffer(communicator, Sent::kBeforeUpdate);
                          }),
              Each(""));
  // While a graph holds them they would be.
  EXPECT_NE(RunOverGloo(2,
                        [](Communicator& communicator) {
                          return TrainWithABuffer(communicator, Sent::kBeforeBackward);
                        })[1],
            "");
}

}  // namespace
}  // namespace ddprun
