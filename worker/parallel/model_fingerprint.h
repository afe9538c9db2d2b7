// Do all ranks train the same model? Names, shapes and types of parameters and buffers, compared
// before the first step (TR24).
//
// The description is a canonical text, one line a tensor ("parameter conv.weight float32 [32, 1, 3,
// 3]"), in registration order: the order of gradients depends on it. Ranks compare its XXH3-128;
// only where that differs is the text fetched, to name the first tensor that differs. Pure
// functions, except AgreeOnModel, which blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/comm/communicator.h"

namespace ddprun {

struct TensorDescription {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  bool is_buffer = false;  // not trained: running statistics and the like
};

std::string DescribeModel(absl::Span<const TensorDescription> tensors);

// 32 hexadecimal digits of XXH3-128.
std::string ModelFingerprint(const std::string& description);

// OK when both are equal; else FAILED_PRECONDITION that names the first tensor that differs, in
// both versions.
absl::Status CompareModels(const std::string& mine, int my_rank, const std::string& theirs,
                           int their_rank);

// Compares this rank's model with that of rank 0, through keys of `group`. Rank 0 publishes and
// returns.
absl::Status AgreeOnModel(const std::string& description, const std::string& group, int rank,
                          int size, const Exchange& exchange, double timeout_seconds);

}  // namespace ddprun
