// The decompressed arrays of one IDX split, shared by all ranks of a node.
//
// With a cache folder, the first rank that gets the lock decompresses the files into one cache
// file, which all ranks map read-only; a restart finds it there and does not decompress again. A
// cache file is named by path, size and modification time of its sources and holds them and the
// XXH3-128 of its bytes; one that is stale, cut or damaged is made again. When the folder cannot be
// used, the arrays live in private memory. Immutable after Open; any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/idx.h"

namespace ddprun {

class IdxStore {
 public:
  // `cache_dir` may be empty (private memory). Blocks while another rank makes the cache file.
  static absl::StatusOr<std::shared_ptr<const IdxStore>> Open(const IdxFiles& files,
                                                              const std::string& cache_dir);
  ~IdxStore();
  IdxStore(const IdxStore&) = delete;
  IdxStore& operator=(const IdxStore&) = delete;

  int64_t samples() const { return samples_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t pixels() const { return rows_ * columns_; }
  const uint8_t* images() const { return images_; }
  const uint8_t* labels() const { return labels_; }
  // Of all pixels of the split, scaled to 0 … 1; computed with exact integer sums.
  double mean() const { return mean_; }
  double deviation() const { return deviation_; }
  bool mapped() const { return map_ != nullptr; }

 private:
  friend class IdxCache;
  IdxStore() = default;

  int64_t samples_ = 0;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  double mean_ = 0;
  double deviation_ = 1;
  const uint8_t* images_ = nullptr;
  const uint8_t* labels_ = nullptr;
  void* map_ = nullptr;
  size_t map_bytes_ = 0;
  IdxSplit owned_;  // private memory, when not mapped
};

}  // namespace ddprun
