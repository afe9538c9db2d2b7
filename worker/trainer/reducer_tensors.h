// Small bridges between LibTorch's tensors and the parallel logic, which is free of LibTorch.
//
// Pure functions, any thread, except BroadcastTensors, which blocks.
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/parallel/model_fingerprint.h"

namespace ddprun {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

// "float32", "bfloat16", "int64" …; the names that layouts, fingerprints and messages use.
std::string ScalarTypeName(torch::ScalarType type);
// The communicator's type, or UNIMPLEMENTED for one that it does not reduce.
absl::StatusOr<DataType> CommunicatorType(torch::ScalarType type);

// For the fingerprint.
std::vector<TensorDescription> DescribeTensors(const NamedTensors& parameters,
                                               const NamedTensors& buffers);

// Copies rank 0's values into the tensors of all ranks, in place, packed into few operations. All
// ranks pass the same names, types and shapes in the same order (AgreeOnModel checks that) on one
// device. Null or one rank: does nothing.
absl::Status BroadcastTensors(const NamedTensors& tensors, Communicator* communicator);

// Initial weights and buffers from rank 0.
absl::Status BroadcastParametersAndBuffers(const NamedTensors& parameters,
                                           const NamedTensors& buffers, Communicator* communicator);

}  // namespace ddprun
