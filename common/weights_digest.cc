#include "common/weights_digest.h"

namespace ddprun {

void WeightsDigest::AddText(absl::string_view text) {
  stream_.UpdateU64(text.size());
  stream_.Update(text.data(), text.size());
}

void WeightsDigest::Add(absl::string_view name, absl::string_view dtype,
                        const std::vector<int64_t>& shape, const void* data, size_t bytes) {
  AddText(name);
  AddText(dtype);
  stream_.UpdateU64(shape.size());
  for (int64_t extent : shape) stream_.UpdateU64(static_cast<uint64_t>(extent));
  stream_.UpdateU64(bytes);
  stream_.Update(data, bytes);
}

}  // namespace ddprun
