// SyncBN among forked ranks over Gloo against one batch norm on the whole batch.
#include "worker/trainer/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "absl/strings/str_join.h"
#include "tests/unit/gloo_ranks.h"

namespace ddprun {
namespace {

using at::Tensor;
using testing::Each;
using testing::HasSubstr;

constexpr int64_t kChannels = 5;

Tensor Randomised(Tensor values) {
  const at::NoGradGuard no_grad;
  return values.copy_(torch::randn_like(values));
}

// "" or the name of what differs by more than `tolerance` of its size.
std::string Compare(const char* name, const Tensor& mine, const Tensor& whole, double tolerance) {
  if (mine.sizes() != whole.sizes()) return absl::StrCat(name, ": other sizes; ");
  if (mine.numel() == 0) return "";
  const double difference = (mine - whole).abs().max().item<double>();
  const double size = std::max(1.0, whole.abs().max().item<double>());
  return difference <= tolerance * size ? "" : absl::StrCat(name, ": ", difference, "; ");
}

void SumOverRanks(Communicator& communicator, Tensor& values) {
  const absl::Status status = communicator
                                  .AllReduce(values.data_ptr(), static_cast<size_t>(values.numel()),
                                             DataType::kFloat32, ReduceOp::kSum)
                                  ->Wait();
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

// Rank r has counts[r] samples. Output, gradients and running statistics equal those of one process
// with the whole batch, but for the order of float32 additions.
std::string EqualsTheWholeBatch(Communicator& world, std::unique_ptr<Communicator> own,
                                const std::vector<int64_t>& counts, int64_t side,
                                at::MemoryFormat format) {
  const auto rank = static_cast<size_t>(world.rank());
  const int64_t first = std::accumulate(counts.begin(), counts.begin() + world.rank(), int64_t{0});
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  torch::manual_seed(3);
  const Tensor whole_input =
      (torch::randn({all, kChannels, side, side}) * 3 + 7).contiguous(format);
  const Tensor direction = torch::randn({all, kChannels, side, side}).contiguous(format);
  BatchNorm2d whole(kChannels);
  Randomised(whole.weight());
  Randomised(whole.bias());
  BatchNorm2d mine(kChannels);
  {
    const at::NoGradGuard no_grad;
    Tensor(mine.weight()).copy_(whole.weight());
    Tensor(mine.bias()).copy_(whole.bias());
  }
  SyncBatchNorm sync(std::move(own));
  sync.Attach({&mine});
  std::string wrong;
  for (int step = 0; step < 2; ++step) {
    Tensor x = (whole_input + step).detach().requires_grad_();
    (whole.forward(x).square() * direction).sum().backward();
    Tensor part = (whole_input + step).narrow(0, first, counts[rank]).detach().requires_grad_();
    const Tensor output = mine.forward(part);
    (output.square() * direction.narrow(0, first, counts[rank])).sum().backward();
    if (!sync.status().ok()) return sync.status().ToString();
    const Tensor expected = whole.forward(x).detach();  // moves the running statistics once more
    wrong += Compare("output", output.detach(), expected.narrow(0, first, counts[rank]), 1e-5);
    (void)mine.forward(part);
    wrong +=
        Compare("input's gradient", part.grad(), x.grad().narrow(0, first, counts[rank]), 3e-5);
  }
  Tensor weight_grad = mine.weight().grad().clone();
  Tensor bias_grad = mine.bias().grad().clone();
  SumOverRanks(world, weight_grad);
  SumOverRanks(world, bias_grad);
  wrong += Compare("weight's gradient", weight_grad, whole.weight().grad(), 3e-5);
  wrong += Compare("bias's gradient", bias_grad, whole.bias().grad(), 3e-5);
  wrong += Compare("running_mean", mine.running_mean(), whole.running_mean(), 1e-5);
  wrong += Compare("running_var", mine.running_var(), whole.running_var(), 1e-5);
  return wrong;
}

std::vector<std::string> RunRanks(const std::vector<int64_t>& counts, int64_t side,
                                  at::MemoryFormat format) {
  SharedExchange exchange;
  const int size = static_cast<int>(counts.size());
  return RunOverGloo(size, [&](Communicator& world) -> std::string {
    CommunicatorOptions options;
    options.name = "sync_batch_norm";
    options.rank = world.rank();
    options.size = size;
    options.timeout_seconds = 20;
    auto own = CreateGlooCommunicator(options, exchange.Get());
    if (!own.ok()) return own.status().ToString();
    return EqualsTheWholeBatch(world, *std::move(own), counts, side, format);
  });
}

TEST(SyncBatchNorm, EqualsOneProcessWithTheWholeBatch) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    for (const std::vector<int64_t>& counts :
         {std::vector<int64_t>{4, 4}, std::vector<int64_t>{2, 2, 2, 2}}) {
      EXPECT_THAT(RunRanks(counts, 6, format), Each("")) << absl::StrJoin(counts, " ");
    }
  }
}

// TR14: weighted by counts; a rank without a sample takes part in every collective.
TEST(SyncBatchNorm, UnevenAndEmptyBatchesAreWeightedByTheirCounts) {
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{1, 7}, std::vector<int64_t>{0, 3}, std::vector<int64_t>{5, 0, 2}}) {
    EXPECT_THAT(RunRanks(counts, 4, at::MemoryFormat::Contiguous), Each(""))
        << absl::StrJoin(counts, " ");
  }
}

// TR13: one value a channel on each rank is enough, if there are two ranks; on all ranks together
// it is not.
TEST(SyncBatchNorm, OneValueARankIsLegalOneInAllIsNot) {
  EXPECT_THAT(RunRanks({1, 1, 1}, 1, at::MemoryFormat::Contiguous), Each(""));
  EXPECT_THAT(RunRanks({1, 0}, 1, at::MemoryFormat::Contiguous),
              Each(HasSubstr("one value a channel")));
}

// Under autocast the input has 16 bits, the statistics have 32.
TEST(SyncBatchNorm, StatisticsOf16BitInputAreTakenIn32Bits) {
  SharedExchange exchange;
  const auto results = RunOverGloo(2, [&](Communicator& world) -> std::string {
    CommunicatorOptions options;
    options.name = "sync_batch_norm";
    options.rank = world.rank();
    options.size = 2;
    auto own = CreateGlooCommunicator(options, exchange.Get());
    if (!own.ok()) return own.status().ToString();
    torch::manual_seed(3);
    const Tensor all = (torch::randn({8, kChannels, 6, 6}) + 20).to(at::kBFloat16);
    BatchNorm2d mine(kChannels);
    BatchNorm2d whole(kChannels);
    SyncBatchNorm sync(*std::move(own));
    sync.Attach({&mine});
    const Tensor part = all.narrow(0, 4 * world.rank(), 4).detach().requires_grad_();
    const Tensor output = mine.forward(part);
    output.sum().backward();
    const Tensor expected = whole.forward(all.to(at::kFloat)).detach();
    if (output.scalar_type() != at::kBFloat16) return "output's type";
    return Compare("running_mean", mine.running_mean(), whole.running_mean(), 1e-6) +
           Compare("running_var", mine.running_var(), whole.running_var(), 1e-6) +
           Compare("output", output.detach().to(at::kFloat),
                   expected.narrow(0, 4 * world.rank(), 4), 2e-2);
  });
  EXPECT_THAT(results, Each(""));
}

class OneLayer : public Block {
 public:
  explicit OneLayer(bool norm) {
    if (norm) register_module("norm", std::make_shared<BatchNorm2d>(kChannels));
  }
  Tensor forward(const Tensor& input) override { return input; }
};

Model ModelWith(bool norm) {
  return Model({{"block", std::make_shared<OneLayer>(norm)}});
}

// What a rank waits for others within forward and backward is none of its own time.
TEST(SyncBatchNorm, TheTimeOfWaitingForALateRankIsKnown) {
  constexpr std::chrono::milliseconds kLate{20};
  SharedExchange exchange;
  const auto results = RunOverGloo(2, [&](Communicator& world) -> std::string {
    CommunicatorOptions options;
    options.name = "sync_batch_norm";
    options.rank = world.rank();
    options.size = 2;
    options.timeout_seconds = 20;
    const Exchange own = exchange.Get();
    bool told = false;
    options.observer = [&](const char* operation, uint64_t, bool finished) {
      if (finished || told || world.rank() != 0 || operation != std::string("all_gather")) return;
      told = own.publish("late", "waiting", "1").ok();
    };
    auto communicator = CreateGlooCommunicator(options, own);
    if (!communicator.ok()) return communicator.status().ToString();
    SyncBatchNorm sync(*std::move(communicator));
    BatchNorm2d norm(kChannels);
    sync.Attach({&norm});
    if (world.rank() == 1) {
      const auto waiting = own.await("late", "waiting", 20);
      if (!waiting.ok()) return waiting.status().ToString();
      std::this_thread::sleep_for(kLate);
    }
    norm.forward(torch::randn({2, kChannels, 3, 3}));
    const double late = std::chrono::duration<double>(kLate).count();
    return world.rank() == 1 || sync.wait_seconds() >= late
               ? ""
               : absl::StrCat("waited ", sync.wait_seconds(), " s");
  });
  EXPECT_THAT(results, Each(""));
}

// MA9.
TEST(SyncBatchNorm, AutoIsOnForSmallBatchesOfSeveralRanks) {
  TrainConfig config;
  config.data_batch_size = 32;
  EXPECT_TRUE(*UseSyncBatchNorm(config, ModelWith(true), 2));
  EXPECT_FALSE(*UseSyncBatchNorm(config, ModelWith(true), 1));
  EXPECT_FALSE(*UseSyncBatchNorm(config, ModelWith(false), 2));
  config.data_batch_size = 33;
  EXPECT_FALSE(*UseSyncBatchNorm(config, ModelWith(true), 2));
  config.parallel_sync_bn = "on";
  EXPECT_TRUE(*UseSyncBatchNorm(config, ModelWith(true), 2));
  EXPECT_THAT(std::string(UseSyncBatchNorm(config, ModelWith(false), 2).status().message()),
              HasSubstr("[parallel] sync_bn"));
  config.parallel_sync_bn = "off";
  config.data_batch_size = 1;
  EXPECT_FALSE(*UseSyncBatchNorm(config, ModelWith(true), 2));
}

}  // namespace
}  // namespace ddprun
