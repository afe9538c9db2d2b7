#include "common/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

constexpr size_t kPieceBytes = 256u << 10;

absl::Status SystemError(const std::string& what, const std::string& path, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
}

absl::Status WriteAll(int fd, std::string_view data, const std::string& path) {
  while (!data.empty()) {
    ssize_t written = write(fd, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("cannot write", path, errno);
    data.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

class Posix final : public FileSystem {
 public:
  absl::Status WriteNewFile(const std::string& path, std::string_view data) override {
    int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) return SystemError("cannot create", path, errno);
    absl::Status status = WriteAll(fd, data, path);
    if (status.ok() && fsync(fd) != 0) status = SystemError("cannot fsync", path, errno);
    if (close(fd) != 0 && status.ok()) status = SystemError("cannot close", path, errno);
    if (!status.ok()) unlink(path.c_str());
    return status;
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return SystemError(absl::StrCat("cannot rename ", from, " to"), to, errno);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return SystemError("cannot open folder", path, errno);
    absl::Status status;
    if (fsync(fd) != 0) status = SystemError("cannot fsync folder", path, errno);
    close(fd);
    return status;
  }

  absl::Status MakeDirectories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return SystemError("cannot make folder", path, error.value());
    return absl::OkStatus();
  }

  absl::Status RemoveAll(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return SystemError("cannot remove", path, error.value());
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    std::string data;
    struct stat info = {};
    if (stat(path.c_str(), &info) == 0 && info.st_size > 0) {
      data.reserve(static_cast<size_t>(info.st_size));
    }
    absl::Status status = ReadPieces(path, [&](std::string_view piece) { data.append(piece); });
    if (!status.ok()) return status;
    return data;
  }

  absl::Status ReadPieces(const std::string& path,
                          const std::function<void(std::string_view)>& piece) override {
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return SystemError("cannot open", path, errno);
    std::vector<char> buffer(kPieceBytes);
    ssize_t got = 0;
    while ((got = read(fd, buffer.data(), buffer.size())) != 0) {
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) break;
      piece(std::string_view(buffer.data(), static_cast<size_t>(got)));
    }
    const int error = errno;
    close(fd);
    return got < 0 ? SystemError("cannot read", path, error) : absl::OkStatus();
  }

  absl::StatusOr<uint64_t> FileBytes(const std::string& path) override {
    struct stat info = {};
    if (stat(path.c_str(), &info) != 0) return SystemError("cannot look at", path, errno);
    return static_cast<uint64_t>(info.st_size);
  }

  absl::Status PointLink(const std::string& path, const std::string& target) override {
    struct stat info = {};
    const bool there = lstat(path.c_str(), &info) == 0;
    if (there && !S_ISLNK(info.st_mode)) return SystemError("there is no link", path, EEXIST);
    if (target.empty()) {
      return !there || unlink(path.c_str()) == 0 ? absl::OkStatus()
                                                 : SystemError("cannot remove", path, errno);
    }
    const std::string temporary = absl::StrCat(path, ".new");
    unlink(temporary.c_str());
    if (symlink(target.c_str(), temporary.c_str()) != 0)
      return SystemError("cannot make link", temporary, errno);
    absl::Status status = Rename(temporary, path);
    if (!status.ok()) unlink(temporary.c_str());
    return status;
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    std::vector<std::string> names;
    DIR* folder = opendir(path.c_str());
    if (folder == nullptr) {
      if (errno == ENOENT) return names;
      return SystemError("cannot list", path, errno);
    }
    while (const dirent* entry = readdir(folder)) {
      std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(std::move(name));
    }
    closedir(folder);
    std::sort(names.begin(), names.end());
    return names;
  }
};

}  // namespace

FileSystem& PosixFileSystem() {
  static Posix files;
  return files;
}

absl::Status ReplaceFile(FileSystem& files, const std::string& path, std::string_view data) {
  // Distinct names, so that two writers never share a temporary file.
  static std::atomic<uint64_t> counter{0};
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid(), ".", counter++);
  absl::Status status = files.WriteNewFile(temporary, data);
  if (!status.ok()) return status;
  status = files.Rename(temporary, path);
  if (!status.ok()) {
    files.RemoveAll(temporary).IgnoreError();
    return status;
  }
  return files.SyncDirectory(ParentPath(path));
}

std::string JoinPath(std::string_view folder, std::string_view name) {
  std::string path(folder);
  if (!path.empty() && path.back() != '/') path += '/';
  return path.append(name);
}

std::string ParentPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace ddprun
