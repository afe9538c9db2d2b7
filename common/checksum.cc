#include "common/checksum.h"

#define XXH_STATIC_LINKING_ONLY  // the state as a complete type
#include <xxhash.h>

#include <array>

#include "absl/strings/str_format.h"

namespace ddprun {

struct Xxh3Stream::State {
  XXH3_state_t xxh;
};

Hash128 Xxh3(const void* data, size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(data, size);
  return {hash.high64, hash.low64};
}

std::string HashHex(const Hash128& hash) {
  return absl::StrFormat("%016x%016x", hash.high, hash.low);
}

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}

Xxh3Stream::~Xxh3Stream() = default;

void Xxh3Stream::Update(const void* data, size_t size) {
  XXH3_128bits_update(&state_->xxh, data, size);
}

void Xxh3Stream::UpdateU64(uint64_t value) {
  std::array<uint8_t, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
  Update(bytes.data(), bytes.size());
}

Hash128 Xxh3Stream::Finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.high64, hash.low64};
}

}  // namespace ddprun
