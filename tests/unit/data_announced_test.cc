// A list that follows another is prepared while that one is still used, and changes no sample.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "tests/unit/numbered_dataset.h"
#include "worker/data/staged_loader.h"

namespace ddprun {
namespace {

// Samples that say their epoch too; it can be waited for that one of an epoch was made.
class EpochDataset : public NumberedDataset {
 public:
  static constexpr int64_t kEpoch = 1000;
  explicit EpochDataset(int64_t size) : NumberedDataset(size) {}
  absl::Status Fill(int64_t epoch, int64_t index, void* inputs, int64_t* targets) const override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      newest_ = std::max(newest_, epoch);
    }
    told_.notify_all();
    return NumberedDataset::Fill(epoch, epoch * kEpoch + index, inputs, targets);
  }
  bool WaitForEpoch(int64_t epoch) const {
    std::unique_lock<std::mutex> lock(mutex_);
    return told_.wait_for(lock, std::chrono::seconds(60), [&] { return newest_ >= epoch; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable told_;
  mutable int64_t newest_ = -1;
};

// A device that has everything at once.
class PromptQueue : public CopyQueue {
 public:
  bool wants_pinned_memory() const override { return false; }
  Batch Copy(int /*buffer*/, const Batch& host) override {
    return {host.inputs.clone(), host.targets.clone()};
  }
  void WaitOnDevice(int /*buffer*/) override {}
  void WaitOnHost(int /*buffer*/) override {}
  void MarkUsed(int /*buffer*/) override {}
};

template <typename AnyLoader>
void ExpectTheSamplesOfEachStart(AnyLoader* loader) {
  for (int round = 0; round < 3; ++round) {
    loader->Start(0, Numbers(0, 23));
    loader->Follow(1, Numbers(50, 9));
    EXPECT_EQ(Drain(loader), Numbers(0, 23));
    loader->Start(1, Numbers(50, 9));  // as announced
    loader->Follow(2, Numbers(0, 30));
    EXPECT_EQ(Drain(loader), Numbers(EpochDataset::kEpoch + 50, 9));
    loader->Start(2, Numbers(1, 30));  // other samples than announced
    loader->Follow(3, Numbers(0, 12));
    EXPECT_EQ(Drain(loader), Numbers(2 * EpochDataset::kEpoch + 1, 30));
    loader->Start(4, Numbers(0, 12));  // another epoch than announced
    loader->Follow(5, Numbers(7, 40));
    ASSERT_TRUE(loader->Next().ok());
    loader->Start(5, Numbers(7, 40));  // before the end of the list
    EXPECT_EQ(Drain(loader), Numbers(5 * EpochDataset::kEpoch + 7, 40));
    loader->Follow(6, {});
    loader->Start(6, {});
    EXPECT_THAT(Drain(loader), ::testing::IsEmpty());
  }
}

TEST(AnnouncedListTest, ItsSamplesAreThoseOfAListThatWasNotAnnounced) {
  const auto data = std::make_shared<EpochDataset>(100);
  for (int threads : {0, 1, 4}) {
    Loader loader(data, {.batch_size = 4, .threads = threads});
    ExpectTheSamplesOfEachStart(&loader);
    StagedLoader staged(data, {.batch_size = 4, .threads = threads},
                        std::make_unique<PromptQueue>());
    ExpectTheSamplesOfEachStart(&staged);
  }
}

TEST(AnnouncedListTest, ItsFirstBatchesAreMadeBeforeItStarts) {
  const auto data = std::make_shared<EpochDataset>(100);
  Loader loader(data, {.batch_size = 4, .threads = 1});
  loader.Start(0, Numbers(0, 20));
  loader.Follow(1, Numbers(0, 20));
  EXPECT_EQ(Drain(&loader).size(), 20U);
  EXPECT_TRUE(data->WaitForEpoch(1));
}

}  // namespace
}  // namespace ddprun
