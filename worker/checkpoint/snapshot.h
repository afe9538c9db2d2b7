// A copy of a fixed set of tensors at one moment, laid out in host memory as the safetensors file
// that it becomes. Buffer and header are made once; Capture only copies, and is what training waits
// for. Capture and the reading of data() must not overlap.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/model.h"

namespace ddprun {

class Snapshot {
 public:
  // `threads` copy what lies in host memory.
  static absl::StatusOr<Snapshot> Create(const std::vector<NamedTensor>& tensors, int threads);
  // Makes the kernel give the buffer's memory now, instead of page by page in the first Capture,
  // which would take several times as long as the others. Any thread, before the first Capture.
  void Populate();
  // Copies the tensors as they are now.
  void Capture();
  const std::string& header() const { return header_; }
  const void* data() const { return buffer_.data_ptr(); }
  size_t data_bytes() const { return buffer_.nbytes(); }

 private:
  // A part of a tensor that lies in host memory in the order of the file.
  struct Chunk {
    size_t tensor = 0;
    size_t offset = 0;  // in bytes
    size_t bytes = 0;
  };
  void AddSource(const at::Tensor& source, const at::Tensor& view);
  void CopyChunks();

  int threads_ = 1;
  std::string header_;
  at::Tensor buffer_;                // bytes
  std::vector<at::Tensor> sources_;  // the tensors, …
  std::vector<at::Tensor> views_;    // … and their places in the buffer
  std::vector<Chunk> chunks_;        // of those that can be copied as bytes
  std::vector<size_t> others_;       // those on a GPU, or in another order of elements
};

}  // namespace ddprun
