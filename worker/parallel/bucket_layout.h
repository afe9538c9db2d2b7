// Which gradients share a flat buffer ("bucket"), in which order, and where each lies in it.
//
// As PyTorch's compute_bucket_assignment_by_size does: parameters are taken in the expected order
// of their gradients (first the reverse of registration, later the order seen in a step), one open
// bucket per data type; a bucket is closed when it has reached its size. The first bucket is small
// (1 MiB), so that communication starts early. The layout is part of a checkpoint: the sums of a
// ring all-reduce depend on where in the buffer a gradient lies, so a resumed run must use the very
// same one to be bit-identical. Values and pure functions, any thread. Invariants: each parameter
// stands in exactly one bucket; offsets ascend, start at multiples of 16 bytes and do not overlap;
// the control slots, kControlSlots float32 elements, are the last of the last float32 bucket (of a
// bucket of their own when there is none).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ddprun {

inline constexpr int64_t kFirstBucketBytes = int64_t{1} << 20;
inline constexpr int64_t kDefaultBucketBytes = int64_t{25} << 20;
// Numbers that travel with the gradients (GradientReducer::control).
inline constexpr int64_t kControlSlots = 2;

// One trainable parameter, in registration order.
struct BucketParameter {
  std::string name;  // PyTorch's, "conv.weight"
  int64_t numel = 0;
  int64_t element_bytes = 4;
  std::string dtype = "float32";
};

struct BucketEntry {
  int parameter = 0;   // index in registration order
  int64_t offset = 0;  // in elements from the start of the bucket
  int64_t numel = 0;
  friend bool operator==(const BucketEntry&, const BucketEntry&) = default;
};

struct Bucket {
  std::string dtype;
  int64_t numel = 0;  // elements of the flat buffer, gaps and control slots included
  std::vector<BucketEntry> entries;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

struct BucketLayout {
  std::vector<Bucket> buckets;
  int control_bucket = 0;
  int64_t control_offset = 0;  // of the first slot
  friend bool operator==(const BucketLayout&, const BucketLayout&) = default;
};

// Buckets for the gradients in `order` (indices of parameters, each once).
BucketLayout MakeBucketLayout(absl::Span<const BucketParameter> parameters,
                              absl::Span<const int> order, int64_t first_bucket_bytes,
                              int64_t bucket_bytes);

// The order in which gradients are expected before any was seen: registration reversed.
std::vector<int> ReverseOrder(size_t parameters);

// Text of a checkpoint, JSON with names, so that it can be read and checked.
std::string BucketLayoutToJson(const BucketLayout& layout,
                               absl::Span<const BucketParameter> parameters);
// Reads it back for a model with these parameters. INVALID_ARGUMENT names what does not fit. A text
// of a version that had one control slot gets the others.
absl::StatusOr<BucketLayout> BucketLayoutFromJson(const std::string& json,
                                                  absl::Span<const BucketParameter> parameters);

// Checks the invariants above against the parameters.
absl::Status ValidateBucketLayout(const BucketLayout& layout,
                                  absl::Span<const BucketParameter> parameters);

}  // namespace ddprun
