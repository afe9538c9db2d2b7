#include "launcher/cli/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "common/files.h"

namespace ddprun::cli {

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = JoinPath(folder, ".lock");
  fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  // Somebody else's: to be told of, if no more.
  if (fd_ < 0) fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd_ < 0) return;
  held_ = flock(fd_, LOCK_EX | LOCK_NB) == 0;
  busy_ = !held_ && errno == EWOULDBLOCK;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace ddprun::cli
