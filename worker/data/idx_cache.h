// The cache file of an IdxStore: making, locking, checking and mapping it. See idx_store.h.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/idx_store.h"

namespace ddprun {

// First page of a cache file; the images begin at kIdxCacheHeaderBytes, the labels follow them.
inline constexpr size_t kIdxCacheHeaderBytes = 4096;
struct IdxCacheHeader {
  char magic[8];  // "ddpidx01"
  uint64_t samples;
  uint64_t rows;
  uint64_t columns;
  double mean;
  double deviation;
  struct Source {
    uint64_t bytes;
    int64_t modified_ns;
    char path[1024];
  } images, labels;
  uint64_t payload_hash_high;
  uint64_t payload_hash_low;
  uint64_t header_hash_low;  // XXH3-128, low half, of all fields before
};
static_assert(sizeof(IdxCacheHeader) <= kIdxCacheHeaderBytes);

class IdxCache {
 public:
  // The mapped store. Any error means that the cache cannot be used; the sources may still be fine.
  static absl::StatusOr<std::shared_ptr<const IdxStore>> OpenOrMake(const IdxFiles& files,
                                                                    const std::string& dir);
  // Decompressed into private memory.
  static absl::StatusOr<std::shared_ptr<const IdxStore>> ReadPrivate(const IdxFiles& files);

 private:
  static absl::StatusOr<std::shared_ptr<const IdxStore>> Map(const std::string& path,
                                                             const IdxCacheHeader& expected);
  static absl::Status Make(const IdxFiles& files, const std::string& path, IdxCacheHeader header);
};

}  // namespace ddprun
