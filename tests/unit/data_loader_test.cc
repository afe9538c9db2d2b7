// The loader and its way to a device: order, bounds, errors, slow samples; with the sampler, how
// the ranks share a data set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/unit/data_files.h"
#include "tests/unit/numbered_dataset.h"
#include "worker/data/staged_loader.h"
#include "worker/parallel/sampler.h"

namespace ddprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(LoaderTest, LargeBatchesAreMadeInPiecesAndInOrder) {
  const auto data =
      std::make_shared<NumberedDataset>(100, 100'000);  // 0.4 MB a sample: a piece each
  for (int threads : {0, 1, 3}) {
    Loader loader(data, 16, threads);
    for (int round = 0; round < 2; ++round) {
      std::vector<int64_t> order = Numbers(0, 100);
      std::reverse(order.begin(), order.end());
      loader.Start(0, order);
      EXPECT_EQ(Drain(&loader), order) << threads;
    }
  }
}

TEST(LoaderTest, TheRingIsBounded) {
  const auto ring = [](int64_t width, const LoaderOptions& options) {
    return Loader::RingBytes(NumberedDataset(64, width).spec(), options);
  };
  EXPECT_EQ(ring(1, {.batch_size = 10, .threads = 4}), 8 * 10 * (4 + 8)) << "two a thread";
  EXPECT_EQ(ring(1, {.batch_size = 10, .threads = 0}), 10 * (4 + 8));
  // 64 MB a batch: four fit, not the eight of four threads.
  EXPECT_EQ(ring(1'000'000, {.batch_size = 16, .threads = 4}), 4 * 16 * (4'000'000 + 8));
  // Batches that are larger than the bound: one is used while the next one is made.
  EXPECT_EQ(ring(80'000'000, {.batch_size = 1, .threads = 4}), 2 * (320'000'000 + 8));
  EXPECT_EQ(ring(80'000'000, {.batch_size = 1, .threads = 4, .kept = 2}), 3 * (320'000'000 + 8));
}

TEST(LoaderTest, KeptBatchesStayAsTheyAre) {
  const auto data = std::make_shared<NumberedDataset>(300);
  for (int threads : {0, 4}) {
    Loader loader(data, {.batch_size = 3, .threads = threads, .kept = 2});
    loader.Start(0, Numbers(0, 300));
    std::vector<int64_t> former;
    Batch former_batch;
    for (Batch batch = *loader.Next(); batch.inputs.defined(); batch = *loader.Next()) {
      if (former_batch.inputs.defined()) {
        EXPECT_EQ(FirstColumn(former_batch), former);
      }
      former = FirstColumn(batch);
      former_batch = batch;
    }
  }
}

class BrokenDataset : public NumberedDataset {
 public:
  explicit BrokenDataset(bool throws) : NumberedDataset(100), throws_(throws) {}
  absl::Status Fill(int64_t epoch, int64_t index, void* inputs, int64_t* targets) const override {
    if (index % 50 != 23) return NumberedDataset::Fill(epoch, index, inputs, targets);
    if (throws_) throw std::runtime_error("the decoder gave up");
    return absl::DataLossError(absl::StrCat("file, sample ", index, ": broken"));
  }

 private:
  const bool throws_;
};

TEST(LoaderTest, ABrokenSampleIsTheErrorOfItsBatchAlone) {
  for (int threads : {0, 1, 4}) {
    for (bool throws : {false, true}) {
      Loader loader(std::make_shared<BrokenDataset>(throws), 10, threads);
      loader.Start(0, Numbers(0, 100));
      for (int batch = 0; batch < 10; ++batch) {
        const absl::StatusOr<Batch> next = loader.Next();
        if (batch != 2 && batch != 7) {
          ASSERT_TRUE(next.ok()) << next.status();
          EXPECT_EQ(FirstColumn(*next), Numbers(batch * 10, 10));
          continue;
        }
        ASSERT_FALSE(next.ok());
        EXPECT_THAT(std::string(next.status().message()),
                    HasSubstr(absl::StrCat("sample ", batch * 10 + 3)));
        if (throws) {
          EXPECT_THAT(std::string(next.status().message()), HasSubstr("the decoder gave up"));
        }
      }
      EXPECT_FALSE((*loader.Next()).inputs.defined());
    }
  }
}

// The next try would need as much (FailureKind of session.h).
TEST(LoaderTest, ASampleThatFindsNoMemoryIsNamedAsOutOfMemory) {
  class HungryDataset : public NumberedDataset {
   public:
    using NumberedDataset::NumberedDataset;
    absl::Status Fill(int64_t, int64_t, void*, int64_t*) const override { throw std::bad_alloc(); }
  };
  for (int threads : {0, 2}) {
    Loader loader(std::make_shared<HungryDataset>(10), 10, threads);
    loader.Start(0, {7});
    const absl::Status status = loader.Next().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("out of memory"), HasSubstr("sample 7"),
                      HasSubstr(absl::StrCat("data.workers = ", threads))));
  }
}

TEST(LoaderTest, ASlowSampleIsNamedOnceAndNotWithoutEnd) {
  Loader loader(std::make_shared<NumberedDataset>(100), {.batch_size = 10, .slow_seconds = -1});
  testing::internal::CaptureStderr();
  for (int round = 0; round < 2; ++round) {
    loader.Start(0, Numbers(0, 3));
    Drain(&loader);
  }
  const std::string once = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(once.begin(), once.end(), '\n'), 3) << once;
  EXPECT_THAT(once, HasSubstr("data: sample 2 took 0.0 s to prepare"));
  testing::internal::CaptureStderr();
  loader.Start(0, Numbers(0, 100));
  Drain(&loader);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("slow sample 20; no more are named"));
}

// Sample 7 is done only when somebody has asked for its name.
class StuckDataset : public NumberedDataset {
 public:
  StuckDataset() : NumberedDataset(20) {}
  absl::Status Fill(int64_t epoch, int64_t index, void* inputs, int64_t* targets) const override {
    if (index == 7) {
      std::unique_lock<std::mutex> lock(mutex_);
      if (!named_now_.wait_for(lock, std::chrono::seconds(30), [&] { return named_; }))
        return absl::DeadlineExceededError("nobody has named it");
    }
    return NumberedDataset::Fill(epoch, index, inputs, targets);
  }
  std::string NameOf(int64_t index) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    named_ = named_ || index == 7;
    named_now_.notify_all();
    return absl::StrCat("stuck sample ", index);
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable named_now_;
  mutable bool named_ = false;
};

TEST(LoaderTest, ASampleThatIsStuckIsNamedWhileItIsWaitedFor) {
  Loader loader(std::make_shared<StuckDataset>(),
                {.batch_size = 5, .threads = 2, .slow_seconds = 0.02});
  testing::internal::CaptureStderr();
  loader.Start(0, Numbers(0, 20));
  EXPECT_EQ(Drain(&loader), Numbers(0, 20));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              MatchesRegex(
                  "data: stuck sample 7 has taken .* s to prepare until now, and is waited for\n"));
}

// The batches of one epoch as rank `rank` sees them.
std::vector<std::vector<int64_t>> EpochOf(const SamplerOptions& options, int64_t batch, int rank,
                                          bool drop_last, int64_t seen = 0) {
  const DistributedSampler sampler(options);
  StagedLoader loader(std::make_shared<NumberedDataset>(options.samples),
                      {.batch_size = batch, .threads = 2}, nullptr);
  std::vector<int64_t> indices = sampler.IndicesFor(rank, /*epoch=*/3, seen);
  if (drop_last)
    indices.resize(indices.size() / static_cast<size_t>(batch) * static_cast<size_t>(batch));
  loader.Start(3, std::move(indices));
  std::vector<std::vector<int64_t>> batches;
  for (Batch next = *loader.Next(); next.inputs.defined(); next = *loader.Next())
    batches.push_back(FirstColumn(next));
  return batches;
}

std::vector<int64_t> Joined(const std::vector<std::vector<int64_t>>& batches) {
  std::vector<int64_t> all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

// TR1: 101 samples on 2 ranks: equally many batches of equal sizes, with padding as PyTorch pads.
TEST(LoaderWithSamplerTest, UnevenDataGiveEqualSteps) {
  for (bool drop_last : {false, true}) {
    const SamplerOptions options = {
        .samples = 101, .replicas = 2, .drop_last = drop_last, .seed = 5};
    const auto first = EpochOf(options, 8, 0, drop_last);
    const auto second = EpochOf(options, 8, 1, drop_last);
    ASSERT_EQ(first.size(), second.size());
    for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].size(), second[i].size());
    EXPECT_EQ(first.size(), drop_last ? 6u : 7u);
    // DistributedSampler: rank r has places r, r + 2 … of the permutation, padded from its start.
    std::vector<int64_t> order = RandomPermutation(101, 5 + 3);
    order.push_back(order[0]);
    std::vector<int64_t> even, odd;
    for (size_t place = 0; place < 102; ++place)
      (place % 2 == 0 ? even : odd).push_back(order[place]);
    if (drop_last) even.resize(48), odd.resize(48);
    EXPECT_EQ(Joined(first), even);
    EXPECT_EQ(Joined(second), odd);
  }
}

// TR31: what is left of an epoch after any batch is exactly the rest.
TEST(LoaderWithSamplerTest, ARestartRepeatsAndSkipsNothing) {
  const SamplerOptions options = {.samples = 101, .replicas = 2, .seed = 5};
  for (int rank : {0, 1}) {
    const auto whole = EpochOf(options, 8, rank, false);
    for (size_t done = 0; done < whole.size(); ++done) {
      const auto rest = EpochOf(options, 8, rank, false, static_cast<int64_t>(done) * 16);
      EXPECT_EQ(rest, std::vector(whole.begin() + static_cast<int64_t>(done), whole.end())) << done;
    }
  }
}

// A device that is as late as it may be: a copy happens when the host waits for it, computation
// when its buffer is to be overwritten.
class LateQueue : public CopyQueue {
 public:
  bool wants_pinned_memory() const override { return false; }
  Batch Copy(int buffer, const Batch& host) override {
    Buffer& b = buffers_[static_cast<size_t>(buffer)];
    EXPECT_TRUE(b.free) << "overwritten while it may be read";
    b.free = false;
    const Batch device = {at::empty_like(host.inputs), at::empty_like(host.targets)};
    b.work.emplace_back([host, device] {
      device.inputs.copy_(host.inputs);
      device.targets.copy_(host.targets);
    });
    b.copied = false;
    return device;
  }
  void WaitOnDevice(int buffer) override { waited_ = buffer; }
  void WaitOnHost(int buffer) override {
    Run(buffer);
    buffers_[static_cast<size_t>(buffer)].copied = true;
  }
  void MarkUsed(int buffer) override { buffers_[static_cast<size_t>(buffer)].free = true; }
  // Computation on the batch that WaitOnDevice was called for.
  void Compute(std::function<void()> work) {
    buffers_[static_cast<size_t>(waited_)].work.push_back(std::move(work));
  }
  void RunAll() {
    for (int buffer = 0; buffer < kBuffers; ++buffer) Run(buffer);
  }

 private:
  struct Buffer {
    bool free = true;
    bool copied = true;
    std::deque<std::function<void()>> work;
  };
  void Run(int buffer) {
    auto& work = buffers_[static_cast<size_t>(buffer)].work;
    for (; !work.empty(); work.pop_front()) work.front()();
  }
  std::array<Buffer, kBuffers> buffers_;
  int waited_ = -1;
};

// TR32: nothing is used again before it is free, however late copies and computation are.
TEST(StagedLoaderTest, BatchesArriveWholeOnADeviceThatIsLate) {
  for (int threads : {0, 1, 4}) {
    auto owned = std::make_unique<LateQueue>();
    LateQueue* queue = owned.get();
    StagedLoader loader(std::make_shared<NumberedDataset>(200),
                        {.batch_size = 7, .threads = threads}, std::move(owned));
    for (int64_t taken : {200, 15, 200, 1}) {  // whole lists, and one that is left early
      loader.Start(0, Numbers(0, 200));
      int64_t expected = 0;
      while (expected < taken) {
        const absl::StatusOr<Batch> batch = loader.Next();
        ASSERT_TRUE(batch.ok() && batch->inputs.defined());
        const int64_t count = batch->inputs.size(0);
        queue->Compute([batch = *batch, expected, count] {
          EXPECT_EQ(FirstColumn(batch), Numbers(expected, count));
        });
        expected += count;
      }
      if (taken == 200) {
        EXPECT_FALSE((*loader.Next()).inputs.defined());
      }
    }
    queue->RunAll();
  }
}

TEST(StagedLoaderTest, AnErrorComesWithItsBatchThoughItWasFoundAhead) {
  auto queue = std::make_unique<LateQueue>();
  StagedLoader loader(std::make_shared<BrokenDataset>(false), {.batch_size = 10, .threads = 2},
                      std::move(queue));
  loader.Start(0, Numbers(0, 100));
  for (int batch = 0; batch < 10; ++batch) {
    const absl::StatusOr<Batch> next = loader.Next();
    EXPECT_EQ(next.ok(), batch != 2 && batch != 7) << batch;
  }
}

TEST(StagedLoaderTest, OnACpuTheBatchIsTheLoadersOwn) {
  EXPECT_EQ(MakeCopyQueue(at::kCPU), nullptr);
  StagedLoader loader(std::make_shared<NumberedDataset>(40), {.batch_size = 4, .threads = 1},
                      nullptr);
  loader.Start(0, Numbers(0, 40));
  std::set<const void*> memory;
  for (Batch batch = *loader.Next(); batch.inputs.defined(); batch = *loader.Next())
    memory.insert(batch.inputs.data_ptr());
  EXPECT_LE(memory.size(), 2u) << "the ring of one thread";
}

}  // namespace
}  // namespace ddprun
