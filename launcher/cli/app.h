// CLI11's App made of the option table: takes options apart and formats the help.
//
// CLI11 reports errors by exceptions; they end here. One thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "launcher/cli/options.h"

namespace ddprun::cli {

// Examples first, then every option of the command. `name`: how ddprun was called.
std::string HelpText(Command command, const std::string& name);

// Applies options, spelled as in the table: "--name" or "--name=value". A later value of the same
// option replaces an earlier one, but for --set.
absl::Status ApplyOptions(const std::vector<std::string>& arguments, Options* options);

// torchrun's PET_ variables, for options that are not `given` (spelled as above).
absl::Status ApplyTorchrunVariables(const std::map<std::string, std::string>& environment,
                                    unsigned command, const std::vector<std::string>& given,
                                    Options* options);

// The same of `ckpt`.
absl::Status CheckCkpt(const Options& options);
absl::Status CheckTokens(const Options& options);

// What the options given must not be together, or lack, for their command.
absl::Status CheckCombination(const Options& options);

}  // namespace ddprun::cli
