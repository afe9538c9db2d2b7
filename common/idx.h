// IDX files, plain or gzipped: the format of MNIST and Fashion-MNIST. Magic 0 0 08 n (unsigned
// bytes, n dimensions), then n dimensions as big-endian u32, then the elements, row-major, and
// nothing after them. Reading is strict: the gzip stream must be whole (CRC and length checked),
// sizes must agree exactly. Pure but for reading files; thread-safe. Errors name the file, what is
// wrong with it, and what to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddprun {

struct IdxArray {
  std::vector<int64_t> shape;  // first: samples
  std::vector<uint8_t> data;
};

// Decompressed bytes of one file; more is refused before anything is allocated.
inline constexpr int64_t kIdxBytesMax = int64_t{16} << 30;

// `dimensions` is what the caller needs (3 for images, 1 for labels). A name that ends in .gz must
// be gzip.
absl::StatusOr<IdxArray> ReadIdx(const std::string& path, int dimensions);

enum class Split { kTrain, kTest };

// The two files of one split.
struct IdxFiles {
  std::string images;
  std::string labels;
};
// Names as MNIST has them: train-images-idx3-ubyte[.gz], t10k-labels-idx1-ubyte[.gz] … A .gz file
// wins.
absl::StatusOr<IdxFiles> FindIdxFiles(const std::string& dir, Split split);

struct IdxSplit {
  IdxArray images;  // {samples, rows, columns}
  IdxArray labels;  // {samples}
};
// Both files, with equal counts and at least one sample.
absl::StatusOr<IdxSplit> ReadIdxSplit(const IdxFiles& files);

}  // namespace ddprun
