// The small model of the reducer's tests.
#pragma once

#include <memory>
#include <stdexcept>

#include "worker/trainer/reducer.h"

namespace ddprun {

// Three layers, 8 → 32 → 16 → 4; small buckets, so that there are several.
struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(7);
    first = register_module("first", torch::nn::Linear(8, 32));
    second = register_module("second", torch::nn::Linear(32, 16));
    third = register_module("third", torch::nn::Linear(16, 4));
  }
  torch::Tensor Loss(const torch::Tensor& input) {
    return third(torch::relu(second(torch::relu(first(input))))).pow(2).mean();
  }
  NamedTensors Parameters() {
    NamedTensors result;
    for (const auto& item : named_parameters()) result.emplace_back(item.key(), item.value());
    return result;
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};

inline ReducerOptions SmallBuckets() {
  ReducerOptions options;
  options.first_bucket_bytes = 256;
  options.bucket_bytes = 1024;
  return options;
}

inline std::unique_ptr<GradientReducer> MustCreate(Net& net, Communicator* communicator,
                                                   const ReducerOptions& options) {
  auto reducer = GradientReducer::Create(net.Parameters(), communicator, options);
  if (!reducer.ok()) throw std::runtime_error(reducer.status().ToString());
  return *std::move(reducer);
}

}  // namespace ddprun
