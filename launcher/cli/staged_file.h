// A file that a command writes for its user: under a temporary name, fsync, then the name; so that
// nobody ever sees half a file, and nothing is replaced that was not meant to be.
//
// One thread. A process that is killed meanwhile leaves FILE.tmp.<pid> behind.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddprun::cli {

// ALREADY_EXISTS, with what to do about it.
absl::Status ThereAlready(const std::string& path);

class StagedFile {
 public:
  static absl::StatusOr<StagedFile> Create(const std::string& path);
  StagedFile(StagedFile&& other) noexcept;
  StagedFile& operator=(StagedFile&&) = delete;
  ~StagedFile();  // what was not published is removed

  absl::Status Append(std::string_view bytes);
  absl::Status Sync();
  // After Sync. ALREADY_EXISTS where there is a file and `replace` is false.
  absl::Status Publish(bool replace);
  const std::string& path() const { return path_; }

 private:
  StagedFile(std::string path, std::string temporary, int fd);
  std::string path_;
  std::string temporary_;  // "": published
  int fd_ = -1;
};

}  // namespace ddprun::cli
