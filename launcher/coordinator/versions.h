// Which versions of ddprun, and of what the trainer needs, may take part together. Pure.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace ddprun::coordinator {

// "" where two ddpruns understand each other: the same major version, minor at most one apart. One
// that is no MAJOR.MINOR… is not judged.
std::string VersionMismatch(absl::string_view ours, absl::string_view theirs);
// "" where everything that both know is the same; else "libtorch 2.3.1 here, 2.4.0 there".
std::string VersionsMismatch(const std::map<std::string, std::string>& ours,
                             const std::map<std::string, std::string>& theirs);

}  // namespace ddprun::coordinator
