// Errors as people see them: the one place where they are printed.
//
// They repeat what was typed and what the environment holds, so control characters are shown as
// \xNN; the ends of lines remain. Threads: any.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace ddprun::cli {

// Without control characters but for the ends of lines.
std::string ForPeople(const std::string& text);

// "ddprun: …" on standard error.
void PrintError(const std::string& text);
void PrintError(const absl::Status& status);

}  // namespace ddprun::cli
