// The checks of the trainer, each alone: fingerprints, slow ranks, numbers that are not finite,
// devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/comm/communicator.h"
#include "worker/trainer/device_name.h"
#include "worker/trainer/fingerprint.h"
#include "worker/trainer/forward.h"
#include "worker/trainer/gather.h"
#include "worker/trainer/non_finite.h"
#include "worker/trainer/slow_rank.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Gather, RanksAreListedAsRanges) {
  EXPECT_EQ(RankList({3}), "rank 3");
  EXPECT_EQ(RankList({0, 1, 2, 5}), "ranks 0-2, 5");
  EXPECT_EQ(RankList({4, 5}), "ranks 4, 5");
}

// A digest changes with any bit of any tensor, and with the places of equal values.
TEST(Fingerprint, EveryBitAndEveryPlaceCounts) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kByte}) {
    const at::Tensor tensor = at::arange(1, 40, at::dtype(type)).reshape({3, 13});
    const auto digests = [&](const at::Tensor& changed) {
      return std::pair(DigestTensors({{"w", changed}})[0], DigestBySums(changed));
    };
    const auto original = digests(tensor);
    EXPECT_EQ(digests(tensor.clone()), original);
    const size_t bytes = tensor.nbytes();
    for (size_t byte = 0; byte < bytes; ++byte) {
      const at::Tensor changed = tensor.clone();
      static_cast<uint8_t*>(changed.data_ptr())[byte] ^= 0x10;
      const auto other = digests(changed);
      EXPECT_NE(other.first, original.first) << type << " byte " << byte;
      EXPECT_NE(other.second, original.second) << type << " byte " << byte;
    }
    const auto swapped = digests(tensor.flip(1));
    EXPECT_NE(swapped.second, original.second) << "the sum alone would be the same";
  }
}

TEST(Fingerprint, TheMinorityIsToBlame) {
  const std::vector<std::string> names = {"conv.weight", "conv.bias", "fc.weight"};
  const std::vector<int64_t> good = {1, 2, 3}, bad = {1, 9, 9};
  EXPECT_TRUE(CompareDigests({good, good, good}, names, 0, 5).ok());
  const auto by = [&](int rank) { return CompareDigests({good, good, bad}, names, rank, 1000); };
  EXPECT_THAT(std::string(by(2).message()),
              HasSubstr("step 1000: the weights of rank 2 differ from those of the other ranks, "
                        "first in conv.bias, fc.weight"));
  EXPECT_EQ(by(2).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(by(0).code(), absl::StatusCode::kUnavailable) << "a victim";
  const absl::Status two = CompareDigests({good, bad}, names, 0, 1000);
  EXPECT_EQ(two.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(two.message()), AllOf(HasSubstr("rank 1 differ from those of rank 0"),
                                                HasSubstr("it cannot be told which are right")));
}

// MA11: who is slow, and whether in its data or in computing. Of two ranks the faster one is the
// measure.
TEST(SlowRanks, AreMeasuredByTheirOwnTimeAgainstTheMedian) {
  const StepTimes fast{.data = 0.1, .compute = 1.0, .wait = 1.0};
  EXPECT_THAT(FindSlowRanks({fast, fast, fast}, 1.5), IsEmpty());
  const StepTimes computes{.data = 0.1, .compute = 2.0, .wait = 0.0};
  const auto slow = FindSlowRanks({fast, computes, fast, fast}, 1.5);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 1);
  EXPECT_FALSE(slow[0].by_data);
  EXPECT_NEAR(slow[0].factor, 2.1 / 1.1, 1e-9);
  const StepTimes loads{.data = 1.1, .compute = 1.0, .wait = 0.0};
  const auto late = FindSlowRanks({loads, fast}, 1.5);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].rank, 0);
  EXPECT_TRUE(late[0].by_data);
  EXPECT_THAT(FindSlowRanks({loads, fast}, 0), IsEmpty()) << "off";
  // Twice as long, but of a step that is spent in communication.
  EXPECT_THAT(FindSlowRanks({{.compute = 0.02, .wait = 1}, {.compute = 0.01, .wait = 1.01}}, 1.5),
              IsEmpty());
}

// Rank 0 waits in SyncBN for rank 1, in the midst of its forward and backward.
TEST(SlowRanks, WhatIsWaitedForWithinTheComputationIsNotTheirOwnTime) {
  StepTimes waits, computes;
  for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
    AddTime(kind, 1.0, /*waited=*/0.75, &waits);
    AddTime(kind, 1.0, /*waited=*/0.0, &computes);
  }
  AddTime(ActionKind::kReduce, 0.5, 0, &waits);
  EXPECT_EQ(waits.compute, 0.5);
  EXPECT_EQ(waits.wait, 2.0);
  const auto slow = FindSlowRanks({waits, computes}, 1.5);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 1);
}

TEST(SlowRanks, AreToldOnceAndWhenItIsOver) {
  const std::vector<std::string> hosts = {"a", "a", "b"};
  const StepTimes fast{.data = 0, .compute = 1, .wait = 2};
  const StepTimes slow{.data = 0, .compute = 3, .wait = 0};
  SlowRankNews news;
  EXPECT_THAT(news.Update(100, {fast, fast, slow}, 1.5, hosts), IsEmpty()) << "once may be chance";
  EXPECT_THAT(news.Update(200, {fast, fast, slow}, 1.5, hosts),
              ElementsAre(AllOf(HasSubstr("step 200: rank 2 on b takes 3.0 times as long"),
                                HasSubstr("it computes more slowly"))));
  for (int step = 300; step < 1100; step += 100) {
    EXPECT_THAT(news.Update(step, {fast, fast, slow}, 1.5, hosts), IsEmpty()) << step;
    EXPECT_EQ(news.told().size(), 1u);
  }
  int repeated = 0;
  for (int step = 1100; step < 1500; step += 100)
    repeated += static_cast<int>(news.Update(step, {fast, fast, slow}, 1.5, hosts).size());
  EXPECT_EQ(repeated, 1) << "said again";
  EXPECT_THAT(news.Update(1500, {fast, fast, fast}, 1.5, hosts),
              ElementsAre("step 1500: rank 2 is as fast as the others again"));
  EXPECT_THAT(news.told(), IsEmpty());
}

TEST(Devices, MixedOnesAreNamedWithTheirRanksAndHosts) {
  EXPECT_EQ(MixedDevices({"H200", "H200"}, {"a", "b"}), "");
  EXPECT_THAT(MixedDevices({"H200", "H200", "A100"}, {"a", "a", "b"}),
              HasSubstr("ranks 0, 1 on a: H200; rank 2 on b: A100"));
  EXPECT_THAT(DeviceName(at::kCPU), HasSubstr("thread"));
}

// Blocks as a model has them; each may break the values on its own.
class Scale : public Block {
 public:
  explicit Scale(float factor) { weight_ = register_parameter("weight", at::full({4}, factor)); }
  at::Tensor forward(const at::Tensor& input) override { return input * weight_; }
  at::Tensor weight_;
};
class Root : public Block {  // the root of 0 is finite, its derivative is not
 public:
  at::Tensor forward(const at::Tensor& input) override { return (input * 0).sqrt() + input; }
};
class Masked : public Block {  // −inf on purpose, finite in the end
 public:
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor mask =
        at::zeros_like(input).masked_fill(input.gt(2.5), -std::numeric_limits<float>::infinity());
    return (input + mask).softmax(-1);
  }
};

// A data set of the rows of a tensor, the same again from the start.
class Rows : public Dataset {
 public:
  explicit Rows(at::Tensor rows) : rows_(rows.contiguous()) {}
  int64_t size() const override { return rows_.size(0); }
  SampleSpec spec() const override {
    return {.input_shape = {4}, .target_shape = {}, .classes = 1};
  }
  absl::Status Fill(int64_t, int64_t index, void* inputs, int64_t* targets) const override {
    std::memcpy(inputs, rows_.data_ptr<float>() + index * 4, 4 * sizeof(float));
    *targets = 0;
    return absl::OkStatus();
  }
  std::string NameOf(int64_t index) const override {
    return absl::StrCat("sample ", index, " (", index, ".jpg)");
  }

 private:
  const at::Tensor rows_;
};

struct Case {
  std::vector<NamedBlock> blocks;
  at::Tensor inputs = at::tensor({1.F, 2.F, 3.F, 4.F}).repeat({3, 1});
};

// What the watch says of one update of one rank; under fp16 when `scaler_verdict` is what the loss
// scaler says of it.
absl::Status Watch(Case test, bool scaled = false, const std::string& scaler_verdict = "") {
  Model model(std::move(test.blocks));
  TrainConfig config;
  class MeanLoss : public Loss {
   public:
    at::Tensor Compute(const at::Tensor& output, const at::Tensor&) override {
      return output.mean();
    }
  };
  model.set_loss(std::make_shared<MeanLoss>());
  ForwardPass forward(&model, config, at::kCPU);
  NonFiniteWatch watch(&model, &forward, at::kCPU, /*enabled=*/true, scaled);
  watch.BeginUpdate();
  const int64_t samples = test.inputs.size(0);
  forward.set_loss_weights(LossWeights::OfSizes({samples}));
  const at::Tensor loss = forward.WeightedLoss(forward.Forward(test.inputs, 0, model.size()),
                                               at::zeros({samples}, at::kLong), 0);
  loss.backward();
  std::vector<at::Tensor> gradients = {loss.detach()};
  for (const NamedTensor& item : model.Parameters()) {
    if (item.tensor.grad().defined()) gradients.push_back(item.tensor.grad());
  }
  if (watch.Finite(gradients) && scaler_verdict.empty()) return absl::OkStatus();
  const auto data = std::make_shared<Rows>(test.inputs);
  Loader batches(data, samples, 0);
  batches.Start(0, {0, 1, 2});
  return watch.Explain({.number = 7,
                        .loss_finite = std::isfinite(loss.item<double>()),
                        .batches = &batches,
                        .samples = {40, 41, 42},
                        .data = data.get(),
                        .scaler_verdict = scaler_verdict},
                       nullptr);
}

NamedBlock Named(const std::string& name, std::shared_ptr<Block> block) {
  return {name, std::move(block)};
}

TEST(NonFinite, TheFirstBlockAndOperationAreNamed) {
  const absl::Status status = Watch({{Named("first", std::make_shared<Scale>(1e30F)),
                                      Named("second", std::make_shared<Scale>(1e30F)),
                                      Named("third", std::make_shared<Scale>(1.F))}});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << "a restart does not help";
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("step 7: the loss is not finite on rank 0"),
            HasSubstr("the first output that is not finite is that of block second (mul with "
                      "second.weight)")));
}

TEST(NonFinite, DataThatAreNotFiniteAreNamedBySample) {
  const absl::Status status =
      Watch({{Named("first", std::make_shared<Scale>(1.F))},
             at::tensor({1.F, 1.F, 1.F, 1.F, 1.F, kNan, 1.F, 1.F, kInfinity, 1.F, 1.F, 1.F})
                 .reshape({3, 4})});
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("the training data are not finite: sample 41 (41.jpg), sample 42 (42.jpg). "));
}

TEST(NonFinite, WeightsThatWereNotFiniteBeforeAreNamed) {
  const absl::Status status = Watch({{Named("first", std::make_shared<Scale>(1.F)),
                                      Named("second", std::make_shared<Scale>(kNan))}});
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("these weights were not finite: second.weight"));
}

TEST(NonFinite, AGradientAloneIsFoundToo) {
  const absl::Status status = Watch(
      {{Named("first", std::make_shared<Scale>(1.F)), Named("root", std::make_shared<Root>())}});
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("the gradients are not finite on rank 0"),
                    HasSubstr("the gradient of first.weight is not")));
}

TEST(NonFinite, MasksAreNoTrouble) {
  EXPECT_TRUE(Watch({{Named("first", std::make_shared<Scale>(1.F)),
                      Named("masked", std::make_shared<Masked>())}})
                  .ok());
  const absl::Status status = Watch({{Named("masked", std::make_shared<Masked>()),
                                      Named("second", std::make_shared<Scale>(kInfinity))}});
  EXPECT_THAT(std::string(status.message()), HasSubstr("second.weight"));
}

TEST(NonFinite, UnderFp16TheScalerDecides) {
  EXPECT_TRUE(Watch({{Named("first", std::make_shared<Scale>(kInfinity))}}, /*scaled=*/true).ok());
}

// Where it gives up the cause is looked for as ever, and its own advice only where it may help.
TEST(NonFinite, UnderFp16TheCauseIsNamedWhenTheScalerGivesUp) {
  const std::string verdict = "The loss scale has fallen";
  const auto one = [](float value) { return Named("first", std::make_shared<Scale>(value)); };
  at::Tensor inputs = at::ones({3, 4});
  inputs[1][2] = kNan;
  const absl::Status data = Watch({{one(1.F)}, inputs}, /*scaled=*/true, verdict);
  EXPECT_EQ(data.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(data.message()),
              AllOf(HasSubstr("step 7: the loss is not finite on rank 0: the training data are not "
                              "finite: sample 41 (41.jpg). Nothing of this update reached the "
                              "weights. Mend these samples or leave them out"),
                    Not(HasSubstr(verdict)), Not(HasSubstr("ignore"))));
  const absl::Status weights = Watch({{one(kNan)}}, /*scaled=*/true, verdict);
  EXPECT_THAT(std::string(weights.message()),
              AllOf(HasSubstr("these weights were not finite: first.weight"), HasSubstr(verdict)));
}

// A dropout whose dropped values break. What was drawn in the update is remembered.
class Breaking : public Block {
 public:
  explicit Breaking(std::vector<bool>* rows) : rows_(*rows) {}
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor drawn = at::rand_like(input) < 0.1;
    if (rows_.empty()) {
      for (int64_t i = 0; i < drawn.size(0); ++i) rows_.push_back(drawn[i].any().item<bool>());
    }
    return input.masked_fill(drawn, kNan);
  }

 private:
  std::vector<bool>& rows_;
};

TEST(NonFinite, AnUpdateIsComputedOnceMoreWithTheSameRandomNumbers) {
  for (const bool scaled : {false, true}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(absl::StrCat("scaled ", scaled, ", seed ", seed));
      at::manual_seed(seed);
      std::vector<bool> rows;
      const absl::Status status = Watch({{Named("first", std::make_shared<Scale>(1.F)),
                                          Named("breaking", std::make_shared<Breaking>(&rows))}},
                                        scaled, scaled ? "verdict" : "");
      std::vector<std::string> bad;
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i]) bad.push_back(absl::StrCat("sample ", 40 + i, " (", 40 + i, ".jpg)"));
      }
      const bool single = !bad.empty() && bad.size() < rows.size();
      const std::string named = absl::StrCat("for these training data: ", absl::StrJoin(bad, ", "));
      EXPECT_EQ(absl::StrContains(status.message(), named), single) << status;
      EXPECT_EQ(absl::StrContains(status.message(), "block breaking"), !bad.empty()) << status;
    }
  }
}

}  // namespace
}  // namespace ddprun
