// The words at the beginning of a command line: `run`, `coordinator`, `ckpt ls` … Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/options.h"

namespace ddprun::cli {

struct CommandWords {
  Command command = Command::kRun;
  CkptAction ckpt = CkptAction::kNone;
  unsigned bits = 0;      // CommandSet: whose options there are
  size_t words = 0;       // arguments that name the command
  const char* name = "";  // "ckpt ls"; "" for run
};

// What the arguments begin with; `run` where they do not begin with a command.
absl::StatusOr<CommandWords> FindCommand(const std::vector<std::string>& arguments);

}  // namespace ddprun::cli
