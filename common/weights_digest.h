// weights_digest: one number for all tensors of a model, equal when they are bit-identical
// (docs/checkpoints.md gives the framing). One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/checksum.h"

namespace ddprun {

class WeightsDigest {
 public:
  // Tensors are given in the order of the bytes of their names. `dtype` as in safetensors, the
  // bytes row-major and little-endian.
  void Add(absl::string_view name, absl::string_view dtype, const std::vector<int64_t>& shape,
           const void* data, size_t bytes);
  std::string Finish() const { return HashHex(stream_.Finish()); }

 private:
  void AddText(absl::string_view text);
  Xxh3Stream stream_;
};

}  // namespace ddprun
