// All-reduces through the shared memory of a machine.
#include <gtest/gtest.h>

#include "tests/unit/comm_ranks.h"

namespace ddprun {
namespace {

TEST(GlooSharedMemory, IsLeftByAllWhereOneRankCannotShareIt) {
  RunRanks(
      4,
      [](Communicator& communicator) {
        EXPECT_STREQ(communicator.AllReducePath(), "TCP");
        auto data = Filled(DataType::kFloat32, 1001,
                           [&](size_t i) { return Value(communicator.rank(), i); });
        ASSERT_TRUE(communicator.AllReduce(data.data(), 1001, DataType::kFloat32, ReduceOp::kSum)
                        ->Wait()
                        .ok());
        EXPECT_EQ(data, Filled(DataType::kFloat32, 1001,
                               [](size_t i) { return Combine(ReduceOp::kSum, 4, i); }));
      },
      true, /*without=*/2);
}

// With numbers whose sum depends on it, at any place of a chunk and in any chunk.
TEST(GlooSharedMemory, AddsUpInTheOrderOfTheRanks) {
  constexpr size_t kCount = 700'001;
  const auto value = [](int rank, size_t i) {
    return static_cast<float>(static_cast<double>(i % 977 + 1) / (rank + 3.0)) *
           (rank % 2 == 0 ? 1.0F : -0.37F);
  };
  for (int size : {3, 4, 5}) {
    RunRanks(size, [&](Communicator& communicator) {
      std::vector<float> data(kCount), expected(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        data[i] = value(communicator.rank(), i);
        expected[i] = value(0, i);
        for (int rank = 1; rank < size; ++rank) expected[i] += value(rank, i);
      }
      ASSERT_TRUE(communicator.AllReduce(data.data(), kCount, DataType::kFloat32, ReduceOp::kSum)
                      ->Wait()
                      .ok());
      EXPECT_TRUE(data == expected) << size << " ranks";
    });
  }
}

}  // namespace
}  // namespace ddprun
