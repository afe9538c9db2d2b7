// Every operation of a Gloo communicator, for each data type, several sizes and numbers of ranks.
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <thread>
#include <tuple>

#include "gtest/gtest.h"
#include "tests/unit/comm_ranks.h"

namespace ddprun {
namespace {

constexpr DataType kTypes[] = {DataType::kFloat32,  DataType::kFloat64, DataType::kFloat16,
                               DataType::kBFloat16, DataType::kInt32,   DataType::kInt64,
                               DataType::kUInt8};
constexpr size_t kCounts[] = {0, 1, 7, 1'000'000};

class GlooSizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooSizes, testing::Values(1, 2, 3, 4, 5));

// By the number of ranks, and whether they share memory.
class GlooAllReduce : public testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooAllReduce,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5), testing::Bool()));

TEST_P(GlooAllReduce, AllReduceGivesTheSameExactResultOnEveryRank) {
  const auto [size, shared] = GetParam();
  RunRanks(
      size,
      [size = size](Communicator& communicator) {
        for (DataType type : kTypes) {
          for (size_t count : kCounts) {
            for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
              if (count > 1000 && op != ReduceOp::kSum && type != DataType::kFloat32) continue;
              auto data =
                  Filled(type, count, [&](size_t i) { return Value(communicator.rank(), i); });
              const auto status = communicator.AllReduce(data.data(), count, type, op)->Wait();
              ASSERT_TRUE(status.ok()) << status;
              ASSERT_EQ(data, Filled(type, count, [&](size_t i) { return Combine(op, size, i); }))
                  << DataTypeName(type) << " × " << count;
            }
          }
        }
      },
      shared);
}

TEST_P(GlooAllReduce, SaysWhatItGoesThrough) {
  const auto [size, shared] = GetParam();
  const std::string path = size == 1 ? "" : shared ? "shared memory" : "TCP";
  RunRanks(
      size, [&](Communicator& c) { EXPECT_EQ(c.AllReducePath(), path); }, shared);
}

TEST_P(GlooAllReduce, AverageIsTheSumDividedByTheNumberOfRanks) {
  const auto [size, shared] = GetParam();
  RunRanks(
      size,
      [size = size](Communicator& communicator) {
        for (DataType type : kTypes) {
          auto data = Filled(type, 1001, [&](size_t i) {
            return communicator.rank() == 0 ? size * (1.0 + static_cast<double>(i % 5)) : 0.0;
          });
          ASSERT_TRUE(communicator.AllReduce(data.data(), 1001, type, ReduceOp::kAvg)->Wait().ok());
          ASSERT_EQ(data,
                    Filled(type, 1001, [](size_t i) { return 1.0 + static_cast<double>(i % 5); }))
              << DataTypeName(type);
        }
      },
      shared);
}

// Operations one after the other, of less than a chunk, of several, and of odd sizes: none sees
// what another one left in memory that is used again.
TEST_P(GlooAllReduce, OneAfterTheOtherDoesNotDisturbTheNext) {
  const auto [size, shared] = GetParam();
  RunRanks(
      size,
      [size = size](Communicator& communicator) {
        const size_t counts[] = {1, 3, 262'144, 262'145, 2, 1'000'003, 5, 5, 5};
        for (size_t round = 0; round < 180; ++round) {
          const size_t count = counts[round % std::size(counts)];
          std::vector<float> data(
              count, static_cast<float>(communicator.rank() + 1) * static_cast<float>(round + 1));
          ASSERT_TRUE(
              communicator.AllReduce(data.data(), count, DataType::kFloat32, ReduceOp::kSum)
                  ->Wait()
                  .ok());
          const float sum =
              static_cast<float>(size * (size + 1) / 2) * static_cast<float>(round + 1);
          ASSERT_EQ(data, std::vector<float>(count, sum)) << round;
        }
      },
      shared);
}

TEST_P(GlooSizes, BroadcastCopiesTheRootsDataFromAnyRoot) {
  const int size = GetParam();
  RunRanks(size, [size](Communicator& communicator) {
    for (int root = 0; root < size; ++root) {
      for (size_t count : kCounts) {
        const auto type = DataType::kInt32;
        auto data = Filled(type, count, [&](size_t i) { return Value(communicator.rank(), i); });
        ASSERT_TRUE(communicator.Broadcast(data.data(), count, type, root)->Wait().ok());
        ASSERT_EQ(data, Filled(type, count, [&](size_t i) { return Value(root, i); }));
      }
    }
  });
}

TEST_P(GlooSizes, AllGatherPutsTheRanksInOrder) {
  const int size = GetParam();
  RunRanks(size, [size](Communicator& communicator) {
    for (DataType type : kTypes) {
      for (size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{100'000}}) {
        const auto input =
            Filled(type, count, [&](size_t i) { return Value(communicator.rank(), i); });
        std::vector<char> output(input.size() * static_cast<size_t>(size));
        ASSERT_TRUE(communicator.AllGather(input.data(), output.data(), count, type)->Wait().ok());
        const size_t all = count * static_cast<size_t>(size);
        ASSERT_EQ(output, Filled(type, all, [&](size_t i) {
                    return Value(static_cast<int>(i / count), i % count);
                  }));
      }
    }
  });
}

// A message larger than any socket buffer, both ways at once: without a group each would wait for
// the other.
TEST(Gloo, CrossedSendsInOneGroupDoNotBlockEachOther) {
  for (int size : {2, 3, 4}) {
    RunRanks(size, [size](Communicator& communicator) {
      const size_t count = 4'000'000;
      const int rank = communicator.rank();
      std::vector<std::vector<float>> incoming(static_cast<size_t>(size),
                                               std::vector<float>(count));
      std::vector<float> outgoing(count, static_cast<float>(rank + 1));
      communicator.GroupStart();
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        communicator.Send(outgoing.data(), count, DataType::kFloat32, peer);
        communicator.Receive(incoming[static_cast<size_t>(peer)].data(), count, DataType::kFloat32,
                             peer);
      }
      const auto status = communicator.GroupEnd()->Wait();
      ASSERT_TRUE(status.ok()) << status;
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        const auto& data = incoming[static_cast<size_t>(peer)];
        ASSERT_EQ(data, std::vector<float>(count, static_cast<float>(peer + 1)));
      }
    });
  }
}

TEST(Gloo, MessagesBetweenTwoRanksArriveInTheOrderOfTheirSending) {
  RunRanks(2, [](Communicator& communicator) {
    std::vector<int32_t> values(100);
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < values.size(); ++i) {
      if (communicator.rank() == 0) {
        values[i] = static_cast<int32_t>(i * i);
        works.push_back(communicator.Send(&values[i], 1, DataType::kInt32, 1));
      } else {
        works.push_back(communicator.Receive(&values[i], 1, DataType::kInt32, 0));
      }
    }
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(works[i]->Wait().ok());
      ASSERT_EQ(values[i], static_cast<int32_t>(i * i));
    }
  });
}

TEST(Gloo, BarrierReturnsOnNoRankBeforeAllHaveCome) {
  std::atomic<int> arrived = 0;
  RunRanks(4, [&](Communicator& communicator) {
    for (int round = 1; round <= 20; ++round) {
      arrived.fetch_add(1);
      ASSERT_TRUE(communicator.Barrier()->Wait().ok());
      ASSERT_GE(arrived.load(), 4 * round);
    }
  });
}

// Sums of floats depend on the order of additions; it must not change from run to run.
TEST_P(GlooAllReduce, ItsBitsAreTheSameInTwoRuns) {
  const auto [size, shared] = GetParam();
  std::vector<std::vector<float>> results;
  for (int run = 0; run < 2; ++run) {
    std::vector<float> first;
    RunRanks(
        size,
        [&](Communicator& communicator) {
          std::vector<float> data(123'457);
          for (size_t i = 0; i < data.size(); ++i) {
            data[i] =
                1.0F / static_cast<float>(i * 7 + 3 + static_cast<size_t>(communicator.rank()));
          }
          ASSERT_TRUE(
              communicator.AllReduce(data.data(), data.size(), DataType::kFloat32, ReduceOp::kAvg)
                  ->Wait()
                  .ok());
          if (communicator.rank() == 0) first = data;
        },
        shared);
    results.push_back(first);
  }
  ASSERT_EQ(results[0].size(), 123'457U);
  EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)),
            0);
}

// A rank that can offer no memory: all of them go another way, and none waits for it.
TEST(Gloo, WhereOneRankCannotShareMemoryAllUseTheNetwork) {
  SharedExchange exchange;
  const auto results = RunProcesses(
      3,
      [&](int rank) -> std::string {
        if (rank == 1) {
          signal(SIGXFSZ, SIG_IGN);
          const rlimit none = {0, 0};
          if (setrlimit(RLIMIT_FSIZE, &none) != 0) return "setrlimit";
        }
        CommunicatorOptions options;
        options.rank = rank;
        options.size = 3;
        auto made = CreateGlooCommunicator(options, exchange.Get());
        if (!made.ok()) return made.status().ToString();
        std::vector<float> data(100'000, static_cast<float>(rank + 1));
        const absl::Status status =
            (*made)
                ->AllReduce(data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum)
                ->Wait();
        if (!status.ok()) return status.ToString();
        return data == std::vector<float>(data.size(), 6) ? "" : "a wrong sum";
      },
      20);
  EXPECT_EQ(results, std::vector<std::string>(3));
}

TEST(Gloo, EachRankPublishesOneValue) {
  SharedExchange exchange;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 5; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.rank = rank;
      options.size = 5;
      ASSERT_TRUE(CreateGlooCommunicator(options, exchange.Get()).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(exchange.published(), 5);
}

TEST(Gloo, OneRankNeedsNoPeersAndNoExchange) {
  CommunicatorOptions options;
  auto communicator = CreateGlooCommunicator(options, Exchange{});
  ASSERT_TRUE(communicator.ok());
  float value = 3;
  EXPECT_TRUE((*communicator)->AllReduce(&value, 1, DataType::kFloat32, ReduceOp::kAvg)->Done());
  EXPECT_EQ(value, 3);
  EXPECT_EQ((*communicator)->Send(&value, 1, DataType::kFloat32, 0)->Wait().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Gloo, TheObserverIsToldOfEachOperationBeforeAndAfter) {
  std::mutex mutex;
  std::vector<std::string> seen;
  SharedExchange exchange;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.rank = rank;
      options.size = 2;
      if (rank == 0) {
        options.observer = [&](const char* operation, uint64_t sequence, bool finished) {
          std::lock_guard<std::mutex> lock(mutex);
          seen.push_back(
              absl::StrCat(operation, " ", sequence, finished ? " finished" : " started"));
        };
      }
      auto communicator = CreateGlooCommunicator(options, exchange.Get());
      ASSERT_TRUE(communicator.ok());
      float value = 1;
      (*communicator)->AllReduce(&value, 1, DataType::kFloat32, ReduceOp::kSum);
      (*communicator)->Barrier();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen, (std::vector<std::string>{"all_reduce 1 started", "all_reduce 1 finished",
                                            "barrier 2 started", "barrier 2 finished"}));
}

}  // namespace
}  // namespace ddprun
