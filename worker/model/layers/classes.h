// What models for images with one class each ask of the data. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/model.h"

namespace ddprun {

// OK for samples of {channels, rows, columns} numbers with one class each; else INVALID_ARGUMENT.
absl::Status CheckImages(const ModelContext& context);

// Outputs of the last layer: [model] classes, else as many as the data have. INVALID_ARGUMENT when
// that is too few.
absl::StatusOr<int64_t> ChooseClasses(const ModelContext& context);

}  // namespace ddprun
