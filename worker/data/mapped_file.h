// A file of data mapped read-only: all ranks of a node share its pages, and a restart finds them in
// memory. Immutable; any thread may read. A file that is cut while it is mapped kills the reader
// (SIGBUS), which says so first (mapped_ranges.h): data files are not changed under a running job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ddprun {

class MappedFile {
 public:
  // NOT_FOUND when there is no such file; INVALID_ARGUMENT, which names the file, when it is not a
  // regular one, is empty, or cannot be read.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  MappedFile() = default;

  std::string path_;
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace ddprun
