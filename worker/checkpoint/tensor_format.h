// LibTorch tensors ↔ safetensors entries, and the digest of a set of tensors (docs/checkpoints.md
// gives its framing). Pure; tensors may lie on any device, bytes are always those of a contiguous
// little-endian copy on the host.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/safetensors.h"
#include "worker/model/model.h"

namespace ddprun {

// "F32" …; INVALID_ARGUMENT for types that the format has not.
absl::StatusOr<std::string> SafetensorsDtype(at::ScalarType type);

// Name, dtype and shape; offsets are filled in by BuildSafetensorsHeader.
absl::StatusOr<std::vector<TensorInfo>> TensorInfos(const std::vector<NamedTensor>& tensors);

// Copies every tensor from the file. The file must hold exactly these names, with equal dtypes and
// shapes (and may hold those of `passed_over`); else nothing is copied, and FAILED_PRECONDITION
// names the first differences, and of what the file then is.
absl::Status LoadTensors(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors,
                         const std::vector<std::string>& passed_over = {},
                         const std::string& mismatch =
                             "another model, other sizes, or another "
                             "optimizer");

// XXH3-128 in hex over the tensors sorted by name.
absl::StatusOr<std::string> TensorsDigest(std::vector<NamedTensor> tensors);

}  // namespace ddprun
