// The user's program: what will be executed, and whether it can be. Looks at the file system only.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ddprun::cli {

// The full path of what execvp(`name`) would execute with this PATH from this folder. NOT_FOUND or
// PERMISSION_DENIED say where was looked and what to do.
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path_variable,
                                        const std::string& working_dir);

// torchrun's way: a .py file becomes `python3 -u file.py`, anything else stays as it is.
absl::StatusOr<std::vector<std::string>> InTorchrunsWay(const std::vector<std::string>& program,
                                                        const std::string& path_variable,
                                                        const std::string& working_dir);

}  // namespace ddprun::cli
