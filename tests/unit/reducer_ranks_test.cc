// The gradient reducer among forked ranks over Gloo. The parent computes nothing: LibTorch's
// threads do not survive a fork.
#include <dlfcn.h>

#include <cstring>

#include "gloo/allreduce.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/gloo_ranks.h"
#include "tests/unit/reducer_net.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using torch::Tensor;

// TR44: libtorch_cpu.so has a Gloo of its own, of another version: a program that mixes them dies.
TEST(ReducerRanks, GlooIsDebiansAndNotTheOneInsideLibTorch) {
  Dl_info info;
  void (*function)(const gloo::AllreduceOptions&) = &gloo::allreduce;
  ASSERT_NE(dladdr(reinterpret_cast<void*>(function), &info), 0);
  EXPECT_THAT(info.dli_fname, HasSubstr("libgloo.so"));
}

// The samples of one rank in one step; the same numbers whoever asks.
Tensor Batch(int rank, int step) {
  torch::manual_seed(static_cast<uint64_t>(1000 + step * 16 + rank));
  return torch::randn({5, 8});
}

void Descend(Net& net) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net.parameters()) parameter.sub_(parameter.grad() * 0.1);
}

// Steps first … last−1 with gradient descent; a failure throws.
void Train(Net& net, GradientReducer& reducer, int rank, int first, int last) {
  for (int step = first; step < last; ++step) {
    reducer.Prepare(true);
    net.Loss(Batch(rank, step)).backward();
    const absl::Status status = reducer.Finish();
    if (!status.ok()) throw std::runtime_error(status.ToString());
    Descend(net);
  }
}

std::string Bits(Net& net) {
  std::string text;
  for (const auto& parameter : net.parameters()) {
    const Tensor flat = parameter.detach().contiguous().reshape({-1});
    const std::string bytes(static_cast<const char*>(flat.data_ptr()), flat.nbytes());
    absl::StrAppend(&text, ModelFingerprint(bytes), "\n");
  }
  return text;
}

// The mean over N equal batches of the mean gradient is the gradient of the whole batch. Only the
// order of the float32 additions differs, so the results agree to a few roundings (6e-8 each) of
// the largest terms: 1e-6 of the norm.
TEST(ReducerRanks, GradientsEqualThoseOfOneRankOnTheWholeBatch) {
  for (int size : {1, 2, 3, 4}) {
    const auto results = RunOverGloo(size, [size](Communicator& communicator) -> std::string {
      Net net;
      Net reference;
      auto reducer = MustCreate(net, &communicator, SmallBuckets());
      std::string wrong;
      for (int step = 0; step < 3; ++step) {  // the second and third in rebuilt buckets
        reducer->Prepare(true);
        net.Loss(Batch(communicator.rank(), step)).backward();
        const absl::Status status = reducer->Finish();
        if (!status.ok()) return status.ToString();
        std::vector<Tensor> batches;
        for (int rank = 0; rank < size; ++rank) batches.push_back(Batch(rank, step));
        reference.zero_grad();
        reference.Loss(torch::cat(batches)).backward();
        const auto mine = net.Parameters();
        const auto theirs = reference.Parameters();
        for (size_t i = 0; i < mine.size(); ++i) {
          const Tensor difference = mine[i].second.grad() - theirs[i].second.grad();
          const double relative =
              (difference.norm() / theirs[i].second.grad().norm()).item<double>();
          if (!(relative < 1e-6)) absl::StrAppend(&wrong, mine[i].first, ": ", relative, "\n");
        }
        Descend(net);
        Descend(reference);
      }
      return wrong;
    });
    EXPECT_THAT(results, Each("")) << size << " ranks";
  }
}

TEST(ReducerRanks, TwoRunsAreBitwiseTheSameOnAllRanks) {
  const auto run = [] {
    return RunOverGloo(3, [](Communicator& communicator) {
      Net net;
      auto reducer = MustCreate(net, &communicator, SmallBuckets());
      Train(net, *reducer, communicator.rank(), 0, 5);
      return Bits(net);
    });
  };
  const auto first = run();
  ASSERT_THAT(first[0], HasSubstr("\n"));
  EXPECT_THAT(first, Each(first[0]));
  EXPECT_EQ(first, run());
}

// TR2: the rank with the unused parameter says its name; the others do not hang, they lose a peer.
TEST(ReducerRanks, AParameterThatOneRankDoesNotUseEndsTheRunWithItsName) {
  const auto results = RunOverGloo(2, [](Communicator& communicator) {
    Net net;
    auto reducer = MustCreate(net, &communicator, SmallBuckets());
    reducer->Prepare(true);
    const Tensor input = Batch(communicator.rank(), 0);
    (communicator.rank() == 0 ? net.Loss(input) : net.first(input).sum()).backward();
    const absl::Status status = reducer->Finish();
    reducer.reset();
    return status.ToString();
  });
  EXPECT_THAT(results[0], HasSubstr("UNAVAILABLE"));
  EXPECT_THAT(results[1], AllOf(HasSubstr("second.weight"), HasSubstr("third.bias")));
}

// A parameter that only some ranks used is averaged over all.
TEST(ReducerRanks, WhenAllowedAParameterThatOneRankUsesIsAveragedOverAll) {
  const auto results = RunOverGloo(2, [](Communicator& communicator) -> std::string {
    Net net;
    ReducerOptions options = SmallBuckets();
    options.allow_unused = true;
    auto reducer = MustCreate(net, &communicator, options);
    reducer->Prepare(true);
    const Tensor input = torch::ones({2, 8});
    (communicator.rank() == 0 ? net.second(net.first(input)).sum() : net.first(input).sum())
        .backward();
    const absl::Status status = reducer->Finish();
    if (!status.ok()) return status.ToString();
    if (net.third->weight.grad().defined()) return "third.weight has a gradient";
    if (!torch::equal(net.second->bias.grad(), torch::full({16}, 1.0)))
      return "second.bias is wrong";
    return "";
  });
  EXPECT_THAT(results, Each(""));
}

// Gradients come in another order on each rank; the layout of all follows rank 0.
TEST(ReducerRanks, TheRebuiltLayoutFollowsRankZeroOnEveryRank) {
  const auto results = RunOverGloo(3, [](Communicator& communicator) {
    Net net;
    auto reducer = MustCreate(net, &communicator, SmallBuckets());
    const BucketLayout initial = reducer->layout();
    reducer->Prepare(true);
    // Three independent branches; autograd takes the one that was built last first.
    std::vector<Tensor> parts(3);
    for (int i = 0; i < 3; ++i) {
      const int branch = (i + communicator.rank()) % 3;
      auto& layer = branch == 0 ? net.third : branch == 1 ? net.first : net.second;
      parts[static_cast<size_t>(branch)] =
          layer(torch::ones({2, layer->options.in_features()})).sum();
    }
    (parts[0] + parts[1] + parts[2]).backward();
    const absl::Status status = reducer->Finish();
    if (!status.ok()) return status.ToString();
    if (!reducer->rebuilt()) return std::string("not rebuilt");
    if (reducer->layout() == initial) return std::string("still the initial layout");
    const std::string agreed = BucketLayoutToJson(reducer->layout(), reducer->parameters());
    // It is what the next step uses, and it stays.
    Train(net, *reducer, communicator.rank(), 1, 3);
    if (BucketLayoutToJson(reducer->layout(), reducer->parameters()) != agreed) {
      return std::string("rebuilt twice");
    }
    return agreed;
  });
  EXPECT_THAT(results[0], HasSubstr("\"buckets\""));
  EXPECT_THAT(results, Each(results[0]));
}

// R10, C2: resumed with the layout of the checkpoint, the run is bit-identical; with a fresh one
// the sums differ in general, which is why it is kept.
TEST(ReducerRanks, ARunResumedWithItsLayoutIsBitIdentical) {
  for (int stop : {1, 3}) {
    const auto results = RunOverGloo(4, [stop](Communicator& communicator) -> std::string {
      Net whole;
      auto reducer = MustCreate(whole, &communicator, SmallBuckets());
      Train(whole, *reducer, communicator.rank(), 0, stop);
      const std::string layout = BucketLayoutToJson(reducer->layout(), reducer->parameters());
      std::vector<Tensor> weights;
      for (const auto& parameter : whole.parameters())
        weights.push_back(parameter.detach().clone());
      Train(whole, *reducer, communicator.rank(), stop, 6);

      Net resumed;
      {
        const torch::NoGradGuard no_grad;
        auto parameters = resumed.parameters();
        for (size_t i = 0; i < weights.size(); ++i) parameters[i].copy_(weights[i]);
      }
      ReducerOptions options = SmallBuckets();
      auto read = BucketLayoutFromJson(layout, reducer->parameters());
      if (!read.ok()) return read.status().ToString();
      options.layout = *read;
      auto second = MustCreate(resumed, &communicator, options);
      Train(resumed, *second, communicator.rank(), stop, 6);
      if (second->rebuilt() || second->layout() != *read) return "the loaded layout was rebuilt";
      return Bits(whole) == Bits(resumed) ? "" : "other weights";
    });
    EXPECT_THAT(results, Each("")) << "stopped after " << stop;
  }
}

// TR37: losses are averaged, not summed, over ranks; those of micro-steps are added up.
TEST(ReducerRanks, FlagAndLossAreMeansOverAllRanks) {
  const auto results = RunOverGloo(4, [](Communicator& communicator) -> std::string {
    Net net;
    auto reducer = MustCreate(net, &communicator, SmallBuckets());
    for (int step = 0; step < 3; ++step) {
      reducer->SetFlag(communicator.rank() == 0 && step == 1 ? 1.0F : 0.0F);
      for (bool last : {false, true}) {
        reducer->Prepare(last);
        const Tensor loss = net.Loss(Batch(communicator.rank(), step));
        reducer->AddLoss(at::scalar_tensor(communicator.rank() + (last ? step : 0.5)));
        loss.backward();
        const absl::Status status = reducer->Finish();
        if (!status.ok()) return status.ToString();
      }
      const GradientReducer::Control control = reducer->control();
      if (control.flag != (step == 1 ? 0.25F : 0.0F)) return absl::StrCat("flag ", control.flag);
      // Ranks 0 … 3, twice each.
      if (control.loss != 3.5F + static_cast<float>(step)) return absl::StrCat(control.loss);
    }
    return "";
  });
  EXPECT_THAT(results, Each(""));
}

// Counts what is sent on behalf of another communicator.
class CountingCommunicator : public Communicator {
 public:
  explicit CountingCommunicator(Communicator& real) : real_(real) {}
  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  const std::string& name() const override { return real_.name(); }
  WorkPtr AllReduce(void* data, size_t count, DataType type, ReduceOp op) override {
    reduced_bytes += count * DataTypeBytes(type);
    return real_.AllReduce(data, count, type, op);
  }
  WorkPtr Broadcast(void* data, size_t count, DataType type, int root) override {
    return real_.Broadcast(data, count, type, root);
  }
  WorkPtr AllGather(const void* input, void* output, size_t count, DataType type) override {
    return real_.AllGather(input, output, count, type);
  }
  WorkPtr Send(const void* data, size_t count, DataType type, int peer) override {
    return real_.Send(data, count, type, peer);
  }
  WorkPtr Receive(void* data, size_t count, DataType type, int peer) override {
    return real_.Receive(data, count, type, peer);
  }
  WorkPtr Barrier() override { return real_.Barrier(); }
  void GroupStart() override { real_.GroupStart(); }
  WorkPtr GroupEnd() override { return real_.GroupEnd(); }
  void Abort(const std::string& reason) override { real_.Abort(reason); }

  size_t reduced_bytes = 0;

 private:
  Communicator& real_;
};

// Half the bytes, but for the control slots; a mean that is off by a rounding to 8 bits for each
// addition at most; the same bits on every rank; the loss is exact.
TEST(ReducerRanks, CompressedGradientsTravelInHalfTheBytes) {
  constexpr int kRanks = 3;
  const auto results = RunOverGloo(kRanks, [](Communicator& real) -> std::string {
    size_t bytes[2];
    std::vector<Tensor> gradients[2];
    std::string bits;
    for (bool compress : {false, true}) {
      CountingCommunicator communicator(real);
      Net net;
      ReducerOptions options = SmallBuckets();
      options.compress = compress;
      auto reducer = MustCreate(net, &communicator, options);
      for (int step = 0; step < 2; ++step) {  // the second in rebuilt buckets
        communicator.reduced_bytes = 0;
        reducer->Prepare(true);
        const Tensor loss = net.Loss(Batch(real.rank(), step));
        reducer->AddLoss(at::scalar_tensor(real.rank() + 0.0001F));
        loss.backward();
        const absl::Status status = reducer->Finish();
        if (!status.ok()) return status.ToString();
        if (std::abs(reducer->control().loss - 1.0001F) > 1e-6F) return "loss";
      }
      bytes[compress] = communicator.reduced_bytes;
      for (const auto& [name, parameter] : net.Parameters()) {
        gradients[compress].push_back(parameter.grad().clone());
      }
      if (compress) {
        Descend(net);
        bits = Bits(net);
      }
    }
    if (bytes[1] != bytes[0] / 2 + kControlSlots * sizeof(float)) {
      return absl::StrCat(bytes[1], " bytes of ", bytes[0]);
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      const Tensor error = (gradients[1][i] - gradients[0][i]).norm() / gradients[0][i].norm();
      if (!(error.item<double>() < kRanks / 256.0))
        return absl::StrCat(i, ": ", error.item<double>());
      if (at::equal(gradients[0][i], gradients[1][i])) return "nothing was rounded";
    }
    return bits;
  });
  EXPECT_THAT(results[0], HasSubstr("\n"));
  EXPECT_THAT(results, Each(results[0]));
}

TEST(ReducerRanks, WeightsAndBuffersOfEveryTypeComeFromRankZero) {
  const auto results = RunOverGloo(3, [](Communicator& communicator) -> std::string {
    const int rank = communicator.rank();
    const NamedTensors parameters = {
        {"a", torch::full({3, 5}, rank + 1.5).requires_grad_()},
        {"b", torch::full({2, 3, 4, 4}, rank + 0.5).contiguous(torch::MemoryFormat::ChannelsLast)},
        {"c", torch::full({7}, rank + 2, torch::kBFloat16)}};
    const NamedTensors buffers = {{"n", torch::tensor(rank + 40, torch::kInt64)},
                                  {"flag", torch::tensor({rank == 0, rank == 1})},
                                  {"none", torch::empty({0})},
                                  {"large", torch::full({8'000'000}, static_cast<float>(rank))}};
    const absl::Status status = BroadcastParametersAndBuffers(parameters, buffers, &communicator);
    if (!status.ok()) return status.ToString();
    const bool good = torch::equal(parameters[0].second.detach(), torch::full({3, 5}, 1.5)) &&
                      torch::equal(parameters[1].second, torch::full({2, 3, 4, 4}, 0.5)) &&
                      torch::equal(parameters[2].second, torch::full({7}, 2, torch::kBFloat16)) &&
                      buffers[0].second.item<int64_t>() == 40 &&
                      torch::equal(buffers[1].second, torch::tensor({true, false})) &&
                      torch::equal(buffers[3].second, torch::zeros({8'000'000}));
    return good ? "" : "wrong values";
  });
  EXPECT_THAT(results, Each(""));
}

}  // namespace
}  // namespace ddprun
