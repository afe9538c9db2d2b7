#include "launcher/net/secret.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/net/input_file.h"

namespace ddprun::net {
namespace {

// Of its file: what is only a little too long is refused as what it is.
constexpr size_t kFileBytesMax = 64 * 1024;

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

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, absl::string_view source) {
  absl::StatusOr<std::string> text = ReadPrivateFile(path, source, "secret", kFileBytesMax);
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
