// A copy of a fixed set of tensors at one moment, laid out in host memory as the safetensors file
// that it becomes. Buffer and header are made once; Capture only copies. Capture and the reading of
// pieces() must not overlap.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/model.h"

namespace ddprun {

class Snapshot {
 public:
  static absl::StatusOr<Snapshot> Create(const std::vector<NamedTensor>& tensors);
  // Copies the tensors as they are now.
  void Capture();
  const std::string& header() const { return header_; }
  const void* data() const { return buffer_.data_ptr(); }
  size_t data_bytes() const { return buffer_.nbytes(); }

 private:
  std::string header_;
  at::Tensor buffer_;                // bytes
  std::vector<at::Tensor> sources_;  // the tensors, …
  std::vector<at::Tensor> views_;    // … and their places in the buffer
};

}  // namespace ddprun
