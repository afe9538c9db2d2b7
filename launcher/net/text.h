// Text from outside: what may be a name, and how anything else is shown.
//
// Pure. Threads: any.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace ddprun::net {

constexpr size_t kNameBytesMax = 64;
constexpr size_t kShownBytesMax = 300;

// 1–64 of [A-Za-z0-9._-]: nodes and incarnations.
bool IsName(absl::string_view name);

// Printable ASCII and whole UTF-8 characters as they are; control characters and stray bytes as
// \xNN; cut to about `bytes_max` with "…".
std::string Shown(absl::string_view bytes, size_t bytes_max = kShownBytesMax);

}  // namespace ddprun::net
