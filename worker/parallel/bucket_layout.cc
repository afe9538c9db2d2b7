#include "worker/parallel/bucket_layout.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

constexpr int64_t kAlignmentBytes = 16;
constexpr char kControlType[] = "float32";

struct OpenBucket {
  Bucket bucket;
  int64_t bytes = 0;  // of the gradients alone, as PyTorch counts
};

int64_t Aligned(int64_t elements, int64_t element_bytes) {
  const int64_t step = std::max<int64_t>(1, kAlignmentBytes / element_bytes);
  return (elements + step - 1) / step * step;
}

void AddControlSlots(BucketLayout& layout) {
  auto& buckets = layout.buckets;
  auto last = std::find_if(buckets.rbegin(), buckets.rend(),
                           [](const Bucket& bucket) { return bucket.dtype == kControlType; });
  if (last == buckets.rend()) {
    buckets.push_back({.dtype = kControlType, .numel = 0, .entries = {}});
    last = buckets.rbegin();
  }
  layout.control_bucket = static_cast<int>(buckets.rend() - last) - 1;
  layout.control_offset = last->numel;
  last->numel += kControlSlots;
}

}  // namespace

BucketLayout MakeBucketLayout(absl::Span<const BucketParameter> parameters,
                              absl::Span<const int> order, int64_t first_bucket_bytes,
                              int64_t bucket_bytes) {
  BucketLayout layout;
  std::map<std::string, OpenBucket> open;     // by data type
  std::map<std::string, int64_t> size_limit;  // by data type: the first bucket of each is small
  for (int index : order) {
    const BucketParameter& parameter = parameters[static_cast<size_t>(index)];
    OpenBucket& current = open[parameter.dtype];
    Bucket& bucket = current.bucket;
    bucket.dtype = parameter.dtype;
    const int64_t offset = Aligned(bucket.numel, parameter.element_bytes);
    bucket.entries.push_back({index, offset, parameter.numel});
    bucket.numel = offset + parameter.numel;
    current.bytes += parameter.numel * parameter.element_bytes;
    const auto limit = size_limit.try_emplace(parameter.dtype, first_bucket_bytes).first;
    if (current.bytes >= limit->second) {
      layout.buckets.push_back(std::move(bucket));
      open.erase(parameter.dtype);
      limit->second = bucket_bytes;
    }
  }
  // What is left, in the order in which its first gradient comes.
  const auto place = [&](const OpenBucket& rest) {
    return std::find(order.begin(), order.end(), rest.bucket.entries.front().parameter);
  };
  std::vector<OpenBucket> rest;
  rest.reserve(open.size());
  for (auto& [dtype, bucket] : open) rest.push_back(std::move(bucket));
  std::sort(rest.begin(), rest.end(),
            [&](const OpenBucket& a, const OpenBucket& b) { return place(a) < place(b); });
  for (OpenBucket& bucket : rest) layout.buckets.push_back(std::move(bucket.bucket));
  AddControlSlots(layout);
  return layout;
}

std::vector<int> ReverseOrder(size_t parameters) {
  std::vector<int> order(parameters);
  for (size_t i = 0; i < parameters; ++i) order[i] = static_cast<int>(parameters - 1 - i);
  return order;
}

absl::Status ValidateBucketLayout(const BucketLayout& layout,
                                  absl::Span<const BucketParameter> parameters) {
  std::vector<int> seen(parameters.size(), 0);
  const auto control = static_cast<size_t>(layout.control_bucket);
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    int64_t end = 0;
    for (const BucketEntry& entry : bucket.entries) {
      const auto index = static_cast<size_t>(entry.parameter);
      if (entry.parameter < 0 || index >= parameters.size()) {
        return absl::InvalidArgumentError(absl::StrCat("bucket ", b, " holds parameter number ",
                                                       entry.parameter, ", the model has ",
                                                       parameters.size()));
      }
      const BucketParameter& parameter = parameters[index];
      if (entry.numel != parameter.numel || bucket.dtype != parameter.dtype) {
        return absl::InvalidArgumentError(absl::StrCat(
            "bucket ", b, " has room for ", entry.numel, " × ", bucket.dtype, " of parameter '",
            parameter.name, "', which has ", parameter.numel, " × ", parameter.dtype));
      }
      if (entry.offset < end || entry.offset * parameter.element_bytes % kAlignmentBytes != 0) {
        return absl::InvalidArgumentError(absl::StrCat("bucket ", b, ": parameter '",
                                                       parameter.name, "' lies at ", entry.offset,
                                                       ", over another one or not aligned"));
      }
      end = entry.offset + entry.numel;
      ++seen[index];
    }
    if (b == control) {
      if (bucket.dtype != kControlType || layout.control_offset < end) {
        return absl::InvalidArgumentError("the control slots lie over a gradient");
      }
      end = layout.control_offset + kControlSlots;
    }
    if (bucket.numel != end) {
      return absl::InvalidArgumentError(absl::StrCat("bucket ", b, " has ", bucket.numel,
                                                     " elements, its contents end at ", end));
    }
  }
  if (layout.control_bucket < 0 || control >= layout.buckets.size()) {
    return absl::InvalidArgumentError("the control slots lie in no bucket");
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", parameters[i].name, "' stands in ", seen[i], " buckets instead of one"));
    }
  }
  return absl::OkStatus();
}

}  // namespace ddprun
