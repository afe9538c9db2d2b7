// Text from outside (names of files and nodes, lines of a log), shown so that it can do nothing to
// a terminal, breaks no line and is valid UTF-8 wherever it goes.
//
// Pure. Threads: any.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace ddprun {

constexpr size_t kShownBytesMax = 300;

// Printable ASCII and whole UTF-8 characters as they are; control characters and stray bytes as
// \xNN; cut to about `bytes_max` with "…".
std::string Shown(absl::string_view bytes, size_t bytes_max = kShownBytesMax);

}  // namespace ddprun
