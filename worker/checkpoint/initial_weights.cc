#include "worker/checkpoint/initial_weights.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/checkpoint/tensor_format.h"

namespace ddprun {

absl::Status LoadInitialWeights(const std::string& path, const Model& model) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("[model] weights: ", std::string(file.status().message())));
  }
  std::vector<NamedTensor> tensors = model.Parameters();
  for (const NamedTensor& buffer : model.Buffers()) {
    const bool optional = absl::EndsWith(buffer.name, "num_batches_tracked");
    if (!optional || file->Find(buffer.name) != nullptr) tensors.push_back(buffer);
  }
  absl::Status status = LoadTensors(*file, tensors);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("[model] weights: ", std::string(status.message())));
}

}  // namespace ddprun
