#include "launcher/net/shared_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/net/proof.h"

namespace ddprun::net {
namespace {

constexpr absl::string_view kPrefix = ".shared-";
constexpr size_t kHexBytes = 2 * kNonceBytes;

bool IsHex(absl::string_view text) {
  return text.size() == kHexBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool IsSharedFile(absl::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos || path[0] != '/') return false;
  absl::string_view name = path.substr(slash + 1);
  if (!absl::StartsWith(name, kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  return IsHex(name);
}

absl::Status Error(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat(call, ": ", strerrordesc_np(errno)));
}

}  // namespace

absl::StatusOr<SharedFile> WriteSharedFile(const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(folder);
  if (names.ok()) {
    for (const std::string& name : *names) {
      const std::string path = JoinPath(folder, name);
      if (IsSharedFile(path)) unlink(path.c_str());
    }
  }
  SharedFile file;
  file.path = JoinPath(folder, absl::StrCat(kPrefix, absl::BytesToHexString(MakeNonce())));
  file.value = absl::BytesToHexString(MakeNonce());
  const int fd = open(file.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return Error(absl::StrCat("cannot make ", file.path));
  absl::Cleanup close_fd = [fd] { close(fd); };
  const auto bytes = static_cast<ssize_t>(file.value.size());
  // Other nodes read it through their own view of the file system.
  if (write(fd, file.value.data(), file.value.size()) != bytes || fsync(fd) != 0) {
    absl::Status status = Error(absl::StrCat("cannot write ", file.path));
    unlink(file.path.c_str());
    return status;
  }
  return file;
}

absl::StatusOr<std::string> ReadSharedFile(const std::string& path) {
  if (!IsSharedFile(path)) return absl::InvalidArgumentError("that is no file of a coordinator");
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(strerrordesc_np(errno));
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::NotFoundError("it is no regular file");
  }
  std::array<char, kHexBytes + 1> text = {};
  const ssize_t bytes = read(fd, text.data(), text.size());
  if (bytes < 0) return absl::NotFoundError(strerrordesc_np(errno));
  std::string value(text.data(), static_cast<size_t>(bytes));
  if (!IsHex(value)) return absl::NotFoundError("it holds something else");
  return value;
}

}  // namespace ddprun::net
