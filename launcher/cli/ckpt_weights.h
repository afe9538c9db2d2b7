// The weights of a model from one or several safetensors files, tensors that lie in parts in
// several files put together (docs/checkpoints.md, "Several files").
//
// Files are mapped, so that models larger than memory can be read. Invariant: the parts of each
// tensor cover it, without overlap. Errors are DATA_LOSS and name the file. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/safetensors.h"

namespace ddprun::cli {

struct WeightPart {
  const SafetensorsFile* file = nullptr;
  const TensorInfo* tensor = nullptr;
  std::vector<int64_t> offset;  // of its first element in the whole
};

struct Weight {
  std::string dtype;
  std::vector<int64_t> shape;  // of the whole
  std::vector<WeightPart> parts;

  uint64_t elements() const;
  uint64_t bytes() const;
  // Row-major. A view of the file, or of `*buffer` where there are several parts.
  std::string_view Data(std::string* buffer) const;
};

class Weights {
 public:
  static absl::StatusOr<Weights> Open(const std::vector<std::string>& paths);

  // By name, in the order of the names' bytes.
  const std::map<std::string, Weight>& tensors() const { return tensors_; }
  // Of all files, without what only tells where parts belong.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // XXH3-128 as result.json has it (common/weights_digest.h).
  std::string Digest() const;
  // Replaces the tensors that `other` has, too; every tensor of `other` must be here, with the same
  // shape.
  absl::Status Overlay(Weights other);

 private:
  absl::Status AddFile(const SafetensorsFile& file);
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Weight> tensors_;
  std::map<std::string, std::string> metadata_;
};

// "[64, 3, 7, 7]"
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace ddprun::cli
