// TR24: ranks with different models are told, before the first step, which tensor differs.
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/parallel/model_fingerprint.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<TensorDescription> Model() {
  return {{"conv.weight", "float32", {32, 1, 3, 3}, false},
          {"conv.bias", "float32", {32}, false},
          {"bn.num_batches_tracked", "int64", {}, true}};
}

TEST(Fingerprint, TheTextHasOneLineATensor) {
  EXPECT_EQ(DescribeModel(Model()),
            "parameter conv.weight float32 [32, 1, 3, 3]\n"
            "parameter conv.bias float32 [32]\n"
            "buffer bn.num_batches_tracked int64 []\n");
}

TEST(Fingerprint, ChangesWithNameShapeTypeOrderAndKind) {
  const std::string own = ModelFingerprint(DescribeModel(Model()));
  EXPECT_EQ(own.size(), 32U);
  EXPECT_EQ(own, ModelFingerprint(DescribeModel(Model())));
  auto other = Model();
  other[0].name = "conv1.weight";
  EXPECT_NE(own, ModelFingerprint(DescribeModel(other)));
  other = Model();
  other[0].shape[1] = 3;
  EXPECT_NE(own, ModelFingerprint(DescribeModel(other)));
  other = Model();
  other[1].dtype = "bfloat16";
  EXPECT_NE(own, ModelFingerprint(DescribeModel(other)));
  other = Model();
  std::swap(other[0], other[1]);
  EXPECT_NE(own, ModelFingerprint(DescribeModel(other)));
  other = Model();
  other[2].is_buffer = false;
  EXPECT_NE(own, ModelFingerprint(DescribeModel(other)));
}

// TR24.
TEST(Fingerprint, ComparisonNamesTheFirstTensorThatDiffers) {
  auto other = Model();
  other[1].shape[0] = 64;
  other[2].name = "later";
  const absl::Status status = CompareModels(DescribeModel(Model()), 2, DescribeModel(other), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'parameter conv.bias float32 [32]' on rank 2"),
                    HasSubstr("'parameter conv.bias float32 [64]' on rank 0")));
  other = Model();
  other.pop_back();
  EXPECT_THAT(
      std::string(CompareModels(DescribeModel(other), 1, DescribeModel(Model()), 0).message()),
      HasSubstr("nothing on rank 1"));
}

// TR24.
TEST(Fingerprint, RanksAgreeThroughTheExchangeAndTheOddOneIsTold) {
  auto odd = Model();
  // Long enough for several parts.
  for (int i = 0; i < 1500; ++i) {
    odd.push_back({absl::StrCat("layer", i, ".weight"), "float32", {8, 8}, false});
  }
  auto usual = odd;
  odd[1200].dtype = "float16";
  std::vector<absl::Status> results(3);
  std::vector<std::thread> threads;
  std::map<std::string, std::string> values;
  std::mutex mutex;
  std::condition_variable changed;
  const Exchange plain = {
      [&](const std::string& group, const std::string& name, const std::string& bytes) {
        std::lock_guard<std::mutex> lock(mutex);
        EXPECT_LE(bytes.size(), 32768U);
        values[group + "/" + name] = bytes;
        changed.notify_all();
        return absl::OkStatus();
      },
      [&](const std::string& group, const std::string& name,
          double timeout_seconds) -> absl::StatusOr<std::string> {
        std::unique_lock<std::mutex> lock(mutex);
        const bool there = changed.wait_for(lock, std::chrono::duration<double>(timeout_seconds),
                                            [&] { return values.count(group + "/" + name) > 0; });
        if (!there) return absl::DeadlineExceededError(name);
        return values[group + "/" + name];
      }};
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const std::string text = DescribeModel(rank == 2 ? odd : usual);
      results[static_cast<size_t>(rank)] = AgreeOnModel(text, "world", rank, 3, plain, 10);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(results[0].ok()) << results[0];
  EXPECT_TRUE(results[1].ok()) << results[1];
  EXPECT_THAT(std::string(results[2].message()),
              AllOf(HasSubstr("tensor number 1201"), HasSubstr("float16"), HasSubstr("rank 2")));
}

}  // namespace
}  // namespace ddprun
