#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/safetensors.h"

namespace ddprun {

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  // Without O_NONBLOCK a named pipe would be waited for, maybe for ever.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::NotFoundError(absl::StrCat(path, ": cannot open: ", strerror(errno)));
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  SafetensorsFile file;
  file.path_ = path;
  file.map_bytes_ = static_cast<size_t>(info.st_size);
  if (file.map_bytes_ > 0) {
    void* map = mmap(nullptr, file.map_bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
      return absl::InternalError(absl::StrCat(path, ": cannot map: ", strerror(errno)));
    }
    file.map_ = static_cast<const uint8_t*>(map);
  }
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(
      absl::string_view(reinterpret_cast<const char*>(file.map_), file.map_bytes_),
      file.map_bytes_);
  if (!header.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", header.status().message()));
  }
  file.header_ = *std::move(header);
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept {
  *this = std::move(other);
}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(map_, other.map_);
  std::swap(map_bytes_, other.map_bytes_);
  std::swap(header_, other.header_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (map_ != nullptr) munmap(const_cast<uint8_t*>(map_), map_bytes_);
}

const TensorInfo* SafetensorsFile::Find(absl::string_view name) const {
  for (const TensorInfo& tensor : header_.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

const uint8_t* SafetensorsFile::Data(const TensorInfo& tensor) const {
  return map_ + header_.data_begin + tensor.begin;
}

}  // namespace ddprun
