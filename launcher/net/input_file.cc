#include "launcher/net/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace ddprun::net {
namespace {

absl::Status CheckPrivate(const struct stat& info, const std::string& name, const std::string& path,
                          absl::string_view what) {
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " belongs to user ", info.st_uid,
                                                   ", who could read and change the ", what,
                                                   ": use a file of your own"));
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": others can read or write the ", what, " (mode 0", absl::Hex((info.st_mode >> 6) & 7),
      absl::Hex((info.st_mode >> 3) & 7), absl::Hex(info.st_mode & 7), "): chmod 600 ", path));
}

absl::StatusOr<std::string> Read(const std::string& path, const std::string& name,
                                 absl::string_view what, size_t bytes_max, bool is_private) {
  const auto unreadable = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": cannot read the ", what, ": ", strerrordesc_np(errno)));
  };
  // O_NONBLOCK: a FIFO must not hold up the start.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return unreadable();
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return unreadable();
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is no regular file"));
  }
  if (is_private) {
    absl::Status status = CheckPrivate(info, name, path, what);
    if (!status.ok()) return status;
  }
  std::string text(bytes_max + 1, '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t n = read(fd, text.data() + got, text.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return unreadable();
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  if (got > bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has more than ", bytes_max,
                                                   " bytes, which is no ", what,
                                                   ": is it the right file?"));
  }
  text.resize(got);
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadInputFile(const std::string& path, const std::string& name,
                                          absl::string_view what, size_t bytes_max) {
  return Read(path, name, what, bytes_max, /*is_private=*/false);
}

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, absl::string_view source,
                                            absl::string_view what, size_t bytes_max) {
  return Read(path, absl::StrCat(source, " ", path), what, bytes_max, /*is_private=*/true);
}

}  // namespace ddprun::net
