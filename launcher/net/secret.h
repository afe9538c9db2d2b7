// The job's secret: what every node of a job must know to take part in it.
//
// It comes from DDPRUN_SECRET, or from a file that its owner alone can read; never from a command
// line, which everybody on the machine can read. Errors name the variable or file and the fix, and
// never hold a byte of the secret. Threads: any.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddprun::net {

// Shorter ones are guessed; longer ones are a wrong file.
constexpr size_t kSecretBytesMin = 8;
constexpr size_t kSecretBytesMax = 4096;

// One newline at the end is dropped. `source` is what people call it: "DDPRUN_SECRET", "the first
// line of stdin".
absl::StatusOr<std::string> CheckSecret(std::string secret, absl::string_view source);

// A regular file of ours (or of root) that nobody else can read or write.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path, absl::string_view source);

// From the values of DDPRUN_SECRET and DDPRUN_SECRET_FILE (nullptr: not set). "" where neither is
// set; both at once is an error.
absl::StatusOr<std::string> ReadSecret(const char* secret, const char* file);

}  // namespace ddprun::net
