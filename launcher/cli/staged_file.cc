#include "launcher/cli/staged_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace ddprun::cli {
namespace {

absl::Status SystemProblem(const char* what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

}  // namespace

absl::Status ThereAlready(const std::string& path) {
  return absl::AlreadyExistsError(
      absl::StrCat(path, ": there is such a file already; --force replaces it"));
}

StagedFile::StagedFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

StagedFile::StagedFile(StagedFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, "")),
      fd_(std::exchange(other.fd_, -1)) {}

StagedFile::~StagedFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::StatusOr<StagedFile> StagedFile::Create(const std::string& path) {
  std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return SystemProblem("create", temporary);
  return StagedFile(path, std::move(temporary), fd);
}

absl::Status StagedFile::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemProblem("write", temporary_);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status StagedFile::Sync() {
  if (fsync(fd_) != 0) return SystemProblem("fsync", temporary_);
  if (close(std::exchange(fd_, -1)) != 0) return SystemProblem("close", temporary_);
  return absl::OkStatus();
}

absl::Status StagedFile::Publish(bool replace) {
  int result = -1;
  if (!replace) {
    result = renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE);
    if (result != 0 && errno == EEXIST) return ThereAlready(path_);
    // Some network file systems know no such rename.
    if (result != 0 && access(path_.c_str(), F_OK) == 0) return ThereAlready(path_);
  }
  if (result != 0 && rename(temporary_.c_str(), path_.c_str()) != 0) {
    return SystemProblem("rename to", path_);
  }
  temporary_.clear();
  return PosixFileSystem().SyncDirectory(ParentPath(path_));
}

}  // namespace ddprun::cli
