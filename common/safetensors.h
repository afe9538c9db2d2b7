// The safetensors file format, without LibTorch: header text, strict validation, memory-mapped
// reading.
//
// A file is: u64 little-endian N; N bytes of JSON; the tensors' bytes, without holes. Offsets are
// relative to the byte after the header. Every rule of the format is checked before a tensor is
// handed out (docs/checkpoints.md lists them), so a damaged or hostile file is an error and never a
// wild read. Limits are named below. Build and Parse are pure; a SafetensorsFile may be read from
// several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddprun {

// The reference reader's own limit.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;
inline constexpr size_t kSafetensorsRankMax = 64;

struct TensorInfo {
  std::string name;
  std::string dtype;  // "F32", "I64", "U8" …
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // of the data section
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their offsets
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // file position of offset 0
};

// Bits of one element, or 0 for a name that is no dtype.
int DtypeBits(absl::string_view dtype);

// Lays the tensors out (largest alignment first, then by name; begin and end are filled in) and
// gives the bytes that stand before the data, padded so that the data begins at a multiple of 8.
absl::StatusOr<std::string> BuildSafetensorsHeader(
    std::vector<TensorInfo>* tensors, const std::map<std::string, std::string>& metadata);

// `prefix` holds at least the whole header; `file_bytes` is the size of the file. Messages begin
// with what is wrong; callers put the path before it.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view prefix,
                                                         uint64_t file_bytes);

// A whole file mapped read-only. Movable; the views live as long as it does.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  ~SafetensorsFile();

  const SafetensorsHeader& header() const { return header_; }
  const std::string& path() const { return path_; }
  // nullptr when there is no such tensor.
  const TensorInfo* Find(absl::string_view name) const;
  const uint8_t* Data(const TensorInfo& tensor) const;

 private:
  SafetensorsFile() = default;
  std::string path_;
  const uint8_t* map_ = nullptr;
  size_t map_bytes_ = 0;
  SafetensorsHeader header_;
};

}  // namespace ddprun
