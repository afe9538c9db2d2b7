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

// How torchrun's flags want the program to be run.
enum class PythonUse {
  kByName,   // a .py file under Python, anything else as it stands
  kNever,    // --no-python
  kModule,   // --module
  kRunPath,  // --run-path
};

// torchrun's way: `python3 -u file.py …`, with the interpreter of `python_exec` (torchrun's
// PYTHON_EXEC) where that is not empty.
absl::StatusOr<std::vector<std::string>> InTorchrunsWay(const std::vector<std::string>& program,
                                                        PythonUse use,
                                                        const std::string& python_exec,
                                                        const std::string& path_variable,
                                                        const std::string& working_dir);

}  // namespace ddprun::cli
