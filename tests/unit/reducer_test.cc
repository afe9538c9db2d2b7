// The gradient reducer in one process: real backward passes, and a communicator that only records.
#include "worker/trainer/reducer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/reducer_net.h"
#include "worker/comm/work.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

// Remembers which buffers were reduced, in which order, and leaves them as they are.
class RecordingCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  const std::string& name() const override { return name_; }
  WorkPtr AllReduce(void* data, size_t, DataType, ReduceOp) override {
    reduced.push_back(data);
    return CompletedWork(absl::OkStatus());
  }
  WorkPtr Broadcast(void*, size_t, DataType, int) override { return CompletedWork({}); }
  WorkPtr AllGather(const void*, void*, size_t, DataType) override { return CompletedWork({}); }
  WorkPtr Send(const void*, size_t, DataType, int) override { return CompletedWork({}); }
  WorkPtr Receive(void*, size_t, DataType, int) override { return CompletedWork({}); }
  WorkPtr Barrier() override { return CompletedWork({}); }
  void GroupStart() override {}
  WorkPtr GroupEnd() override { return CompletedWork({}); }
  void Abort(const std::string&) override {}

  std::vector<void*> reduced;

 private:
  std::string name_ = "recording";
};

TEST(Reducer, ReducesDuringBackwardInTheOrderOfBucketNumbers) {
  Net net;
  RecordingCommunicator communicator;
  auto reducer = MustCreate(net, &communicator, SmallBuckets());
  ASSERT_GE(reducer->flat_gradients().size(), 3U);
  std::vector<void*> expected;
  for (const Tensor& flat : reducer->flat_gradients()) expected.push_back(flat.data_ptr());
  reducer->Prepare(true);
  // The first layer's gradient comes last; by then everything but its own bucket must have been
  // handed over.
  size_t before_last = 0;
  net.first->weight.register_hook(
      [&](const Tensor&) { before_last = communicator.reduced.size(); });
  net.Loss(torch::ones({2, 8})).backward();
  EXPECT_GE(before_last, expected.size() - 2);
  EXPECT_EQ(communicator.reduced, expected);  // all of them, before Finish
  EXPECT_TRUE(reducer->Finish().ok());
}

// A bucket whose gradients are complete waits for the buckets before it: ranks whose gradients come
// in another order would reduce different buffers with each other.
TEST(Reducer, ABucketThatIsReadyEarlyWaitsForThoseBeforeIt) {
  Net net;
  RecordingCommunicator communicator;
  ReducerOptions options;
  const auto parameters = MustCreate(net, nullptr, {})->parameters();
  // Against the order of arrival: the first layer's gradients, which come last, stand first.
  const std::vector<int> order = {0, 1, 2, 3, 4, 5};
  options.layout = MakeBucketLayout(parameters, order, 64, 64);
  auto reducer = MustCreate(net, &communicator, options);
  std::vector<void*> expected;
  for (const Tensor& flat : reducer->flat_gradients()) expected.push_back(flat.data_ptr());
  reducer->Prepare(true);
  net.Loss(torch::ones({2, 8})).backward();
  EXPECT_EQ(communicator.reduced, expected);
  EXPECT_TRUE(reducer->Finish().ok());
  EXPECT_FALSE(reducer->rebuilt());
}

// TR11: gradients are views of the buckets, also after the layout was rebuilt.
TEST(Reducer, GradientsLieInsideTheBucketsAndAreZeroedInPlace) {
  Net net;
  auto reducer = MustCreate(net, nullptr, SmallBuckets());
  for (int step = 0; step < 3; ++step) {
    reducer->Prepare(true);
    for (const auto& [name, parameter] : net.Parameters()) {
      EXPECT_EQ(parameter.grad().abs().sum().item<float>(), 0) << name;
      bool inside = false;
      for (const Tensor& flat : reducer->flat_gradients()) {
        const auto* begin = static_cast<const char*>(flat.data_ptr());
        const auto* grad = static_cast<const char*>(parameter.grad().data_ptr());
        inside |= grad >= begin && grad < begin + flat.nbytes();
      }
      EXPECT_TRUE(inside) << name;
    }
    net.Loss(torch::ones({2, 8})).backward();
    ASSERT_TRUE(reducer->Finish().ok());
    EXPECT_TRUE(reducer->rebuilt());
    EXPECT_GT(net.first->weight.grad().abs().sum().item<float>(), 0);
  }
}

TEST(Reducer, AGradientThatWasReplacedIsAnErrorThatNamesIt) {
  Net net;
  auto reducer = MustCreate(net, nullptr, {});
  reducer->Prepare(true);
  net.second->weight.mutable_grad() = Tensor();  // zero_grad(set_to_none)
  net.Loss(torch::ones({2, 8})).backward();
  EXPECT_THAT(std::string(reducer->Finish().message()), HasSubstr("'second.weight' was replaced"));
}

// TR11: between updates set_to_none does no harm.
TEST(Reducer, GradientsThatWereSetToNoneBetweenUpdatesAreAttachedAgain) {
  Net net;
  auto reducer = MustCreate(net, nullptr, {});
  for (int step = 0; step < 2; ++step) {
    net.zero_grad(true);
    reducer->Prepare(true);
    net.Loss(torch::ones({2, 8})).backward();
    ASSERT_TRUE(reducer->Finish().ok());
  }
}

TEST(Reducer, ASecondBackwardAfterPrepareTrueIsAnError) {
  Net net;
  auto reducer = MustCreate(net, nullptr, {});
  reducer->Prepare(true);
  net.Loss(torch::ones({2, 8})).backward();
  net.Loss(torch::ones({2, 8})).backward();
  EXPECT_THAT(std::string(reducer->Finish().message()), HasSubstr("second gradient"));
}

// TR2, TR3: with what the hooks have counted, so nothing is searched for.
TEST(Reducer, ParametersWithoutGradientAreNamed) {
  Net net;
  auto reducer = MustCreate(net, nullptr, {});
  reducer->Prepare(true);
  net.first(torch::ones({2, 8})).sum().backward();
  EXPECT_THAT(std::string(reducer->Finish().message()),
              AllOf(HasSubstr("4 of 6 parameters got no gradient"), HasSubstr("second.weight"),
                    HasSubstr("third.bias"), HasSubstr("train.unused_parameters = \"ignore\"")));
}

// TR4: weight decay must not move what nobody used.
TEST(Reducer, WhenAllowedAnUnusedParameterHasNoGradientAndComesBackWhenUsed) {
  Net net;
  ReducerOptions options;
  options.allow_unused = true;
  auto reducer = MustCreate(net, nullptr, options);
  reducer->Prepare(true);
  net.first(torch::ones({2, 8})).sum().backward();
  ASSERT_TRUE(reducer->Finish().ok());
  EXPECT_TRUE(net.first->weight.grad().defined());
  EXPECT_FALSE(net.second->weight.grad().defined());
  reducer->Prepare(true);
  net.Loss(torch::ones({2, 8})).backward();
  ASSERT_TRUE(reducer->Finish().ok());
  EXPECT_GT(net.second->weight.grad().abs().sum().item<float>(), 0);
}

// TR7, TR8, TR10, TR48: the sum over micro-steps, reduced once.
TEST(Reducer, AccumulationSumsMicroStepsAndReducesOnlyTheLast) {
  Net net;
  RecordingCommunicator communicator;
  auto reducer = MustCreate(net, &communicator, SmallBuckets());
  const Tensor input = torch::randn({2, 8});
  for (int micro = 0; micro < 3; ++micro) {
    const bool last = micro == 2;
    reducer->Prepare(last);
    (net.Loss(input) / 3).backward();
    ASSERT_TRUE(reducer->Finish().ok());
    EXPECT_EQ(communicator.reduced.empty(), !last);
  }
  Net reference;
  reference.Loss(input).backward();
  EXPECT_TRUE(
      torch::allclose(net.first->weight.grad(), reference.first->weight.grad(), 1e-5, 1e-7));
}

// TR36: a graph of the gradients would be cut off by the reduction.
TEST(Reducer, ABackwardThatBuildsAGraphOfTheGradientsIsRefused) {
  Net net;
  auto reducer = MustCreate(net, nullptr, {});
  reducer->Prepare(true);
  net.Loss(torch::ones({2, 8})).backward({}, true, /*create_graph=*/true);
  EXPECT_THAT(std::string(reducer->Finish().message()), HasSubstr("create_graph"));
  for (const auto& [name, parameter] : net.Parameters()) parameter.mutable_grad() = Tensor();
}

TEST(Reducer, ParametersThatCannotBeReducedAreRefusedByName) {
  Net net;
  auto parameters = net.Parameters();
  parameters[1].second = torch::zeros({3});
  EXPECT_THAT(std::string(GradientReducer::Create(parameters, nullptr, {}).status().message()),
              HasSubstr("'first.bias' is not a trainable leaf"));
  EXPECT_FALSE(GradientReducer::Create({}, nullptr, {}).ok());
}

// The reducer may go before the model; hooks must not outlive it.
TEST(Reducer, BackwardAfterItsEndIsPlainBackward) {
  Net net;
  MustCreate(net, nullptr, {}).reset();
  net.Loss(torch::ones({2, 8})).backward();
  EXPECT_TRUE(net.first->weight.grad().defined());
}

}  // namespace
}  // namespace ddprun
