#include "launcher/net/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace ddprun::net {
namespace {

// The text of the file, at most bytes_max + 1 bytes of it.
absl::StatusOr<std::string> ReadAtMost(int fd, size_t bytes_max) {
  std::string text(bytes_max + 1, '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t n = read(fd, text.data() + got, text.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, "read");
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  text.resize(got);
  return text;
}

}  // namespace

absl::StatusOr<std::string> CheckSecret(std::string secret, absl::string_view source) {
  if (!secret.empty() && secret.back() == '\n') secret.pop_back();
  if (!secret.empty() && secret.back() == '\r') secret.pop_back();
  if (secret.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, " is empty: give it a random text, for example of: openssl rand ", "-hex 32"));
  }
  if (secret.size() < kSecretBytesMin) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, " has ", secret.size(), " bytes; a secret of fewer than ",
                     kSecretBytesMin, " is guessed: make one by: openssl rand -hex 32"));
  }
  if (secret.size() > kSecretBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, " has more than ", kSecretBytesMax,
        " bytes, which is no secret: is it the right file? (make one by: openssl rand -hex 32)"));
  }
  return secret;
}

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, absl::string_view source,
                                            absl::string_view what, size_t bytes_max) {
  // O_NONBLOCK: a FIFO must not hold up the start.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, " ", path, ": cannot read the ", what, ": ", strerrordesc_np(errno)));
  }
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(source, " ", path, " is no regular file"));
  }
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::InvalidArgumentError(absl::StrCat(source, " ", path, " belongs to user ",
                                                   info.st_uid, ", who could read and change the ",
                                                   what, ": use a file of your own"));
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, " ", path, ": others can read or write the ", what, " (mode 0",
                     absl::Hex((info.st_mode >> 6) & 7), absl::Hex((info.st_mode >> 3) & 7),
                     absl::Hex(info.st_mode & 7), "): chmod 600 ", path));
  }
  absl::StatusOr<std::string> text = ReadAtMost(fd, bytes_max);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, " ", path, ": cannot read the ", what, ": ", text.status().message()));
  }
  return text;
}

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, absl::string_view source) {
  absl::StatusOr<std::string> text = ReadPrivateFile(path, source, "secret", kSecretBytesMax + 2);
  if (!text.ok()) return text.status();
  return CheckSecret(*std::move(text), absl::StrCat(source, " ", path));
}

absl::StatusOr<std::string> ReadSecret(const char* secret, const char* file) {
  if (secret != nullptr && file != nullptr) {
    return absl::InvalidArgumentError(
        "DDPRUN_SECRET and DDPRUN_SECRET_FILE are both set: keep one of them");
  }
  if (file != nullptr) {
    if (*file == '\0') return absl::InvalidArgumentError("DDPRUN_SECRET_FILE is empty: unset it");
    return ReadSecretFile(file, "DDPRUN_SECRET_FILE");
  }
  if (secret != nullptr) return CheckSecret(secret, "DDPRUN_SECRET");
  return "";
}

}  // namespace ddprun::net
