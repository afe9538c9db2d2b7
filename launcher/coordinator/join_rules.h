// What a node must be like to take part: pure rules about names, addresses and versions.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace ddprun::coordinator {

constexpr size_t kNodeNameMax = 64;

// 1 to 64 of A-Z a-z 0-9 . _ -
bool IsNodeName(absl::string_view name);
// Text from outside for a message to people: cut to `bytes`, control characters escaped.
std::string Printable(absl::string_view text, size_t bytes = 200);
// Peers on other machines cannot reach it: 127.x, ::1, localhost.
bool IsLoopback(absl::string_view address);

// "" where two ddpruns understand each other: the same major version, minor at most one apart. One
// that is no MAJOR.MINOR… is not judged.
std::string VersionMismatch(absl::string_view ours, absl::string_view theirs);
// "" where everything that both know is the same; else "libtorch 2.3.1 here, 2.4.0 there".
std::string VersionsMismatch(const std::map<std::string, std::string>& ours,
                             const std::map<std::string, std::string>& theirs);

}  // namespace ddprun::coordinator
