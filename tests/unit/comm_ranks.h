// Ranks of a Gloo communicator as threads of a test, and numbers for them to add up.
#pragma once

#include <gloo/types.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/shared_exchange.h"
#include "worker/comm/communicator.h"

namespace ddprun {

// Runs body as `size` ranks in threads of this process; a returned text is a failure.
inline void RunRanks(int size, const std::function<void(Communicator&)>& body,
                     bool shared_memory = true, int without = -1) {
  SharedExchange exchange;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.rank = rank;
      options.size = size;
      options.timeout_seconds = 30;
      options.shared_memory = shared_memory && rank != without;
      auto communicator = CreateGlooCommunicator(options, exchange.Get());
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      body(**communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Small whole numbers, which every type holds exactly.
inline double Value(int rank, size_t i) {
  return static_cast<double>((i + static_cast<size_t>(rank) * 3) % 11);
}

inline void Store(std::vector<char>& bytes, DataType type, size_t i, double value) {
  auto put = [&](auto number) {
    std::memcpy(bytes.data() + i * sizeof(number), &number, sizeof(number));
  };
  const auto single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof(bits));
  switch (type) {
    case DataType::kFloat32:
      return put(single);
    case DataType::kFloat64:
      return put(value);
    case DataType::kFloat16:
      return put(gloo::cpu_float2half_rn(single));
    case DataType::kBFloat16:
      return put(static_cast<uint16_t>(bits >> 16));
    case DataType::kInt32:
      return put(static_cast<int32_t>(value));
    case DataType::kInt64:
      return put(static_cast<int64_t>(value));
    case DataType::kUInt8:
      return put(static_cast<uint8_t>(value));
  }
}

inline std::vector<char> Filled(DataType type, size_t count,
                                const std::function<double(size_t)>& value) {
  std::vector<char> bytes(count * DataTypeBytes(type));
  for (size_t i = 0; i < count; ++i) Store(bytes, type, i, value(i));
  return bytes;
}

inline double Combine(ReduceOp op, int size, size_t i) {
  double result = Value(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double value = Value(rank, i);
    if (op == ReduceOp::kMin) result = std::min(result, value);
    if (op == ReduceOp::kMax) result = std::max(result, value);
    if (op == ReduceOp::kSum || op == ReduceOp::kAvg) result += value;
  }
  return result;
}

}  // namespace ddprun
