#include "worker/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "worker/data/mapped_ranges.h"

namespace ddprun {

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  // Without O_NONBLOCK a named pipe would be waited for, maybe for ever.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    const std::string text = absl::StrCat(path, ": cannot open: ", strerror(error));
    return error == ENOENT ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
  }
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot stat: ", strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  if (info.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is empty; copy or make it again"));
  }
  void* map = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot map: ", strerror(errno)));
  }
  std::shared_ptr<MappedFile> file(new MappedFile());
  file->path_ = path;
  file->data_ = static_cast<const uint8_t*>(map);
  file->size_ = info.st_size;
  RememberMapped(map, static_cast<size_t>(info.st_size), path);
  return file;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  ForgetMapped(data_);
  munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_));
}

}  // namespace ddprun
