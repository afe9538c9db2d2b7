// Text from outside: what may be a name, and how anything else is shown (common/shown.h).
//
// Pure. Threads: any.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "common/shown.h"

namespace ddprun::net {

constexpr size_t kNameBytesMax = 64;

// 1–64 of [A-Za-z0-9._-]: nodes and incarnations.
bool IsName(absl::string_view name);

using ddprun::kShownBytesMax;
using ddprun::Shown;

}  // namespace ddprun::net
