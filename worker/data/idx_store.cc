#include "worker/data/idx_store.h"

#include <sys/mman.h>

#include "worker/data/idx_cache.h"
#include "worker/data/mapped_ranges.h"

namespace ddprun {
absl::StatusOr<std::shared_ptr<const IdxStore>> IdxStore::Open(const IdxFiles& files,
                                                               const std::string& cache_dir) {
  if (!cache_dir.empty()) {
    auto store = IdxCache::OpenOrMake(files, cache_dir);
    // The files themselves are wrong: no use in reading them again. Anything else is the cache's
    // trouble.
    if (store.ok() || store.status().code() == absl::StatusCode::kInvalidArgument) return store;
  }
  return IdxCache::ReadPrivate(files);
}

IdxStore::~IdxStore() {
  if (map_ == nullptr) return;
  ForgetMapped(map_);
  munmap(map_, map_bytes_);
}

}  // namespace ddprun
