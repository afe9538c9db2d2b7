// Files that people name: read whole, but never more of them than such a file may have, so that
// a wrong path (a device, a FIFO, a data set) is an error of the command line. Threads: any.
//
// `what` is what it holds, for errors: "key".
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddprun::net {

// A regular file of at most bytes_max bytes; a larger one is an error. `name`: as it was typed,
// "--hosts @FILE".
absl::StatusOr<std::string> ReadInputFile(const std::string& path, const std::string& name,
                                          absl::string_view what, size_t bytes_max);

// The same, of a file of ours (or of root) that nobody else can read or write. `source`: what names
// it, "--tls-key".
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, absl::string_view source,
                                            absl::string_view what, size_t bytes_max);

}  // namespace ddprun::net
