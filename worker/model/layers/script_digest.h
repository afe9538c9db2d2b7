// Is a module of torch.jit.save the same function on all machines?
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ddprun {

// 32 hexadecimal digits of what the file's module computes: its code, attributes and constants,
// without the values of parameters and buffers (rank 0's are everyone's) and without what only
// debuggers read, which names paths of the machine that saved it. INVALID_ARGUMENT names the file.
absl::StatusOr<std::string> ScriptModuleDigest(const std::string& path);

}  // namespace ddprun
