// The table of all options: name, value, commands, text for --help, and what a value does. Each
// option stands here once; parsing, help and suggestions are driven by it. Read-only, thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "launcher/cli/options.h"

namespace ddprun::cli {

// Which commands have an option, as bits.
enum CommandSet : unsigned {
  kForRun = 1,
  kForCoordinator = 2,
  kForAgent = 4,
  kForLogs = 8,
  kForDoctor = 16,
  kForCkptList = 32,
  kForCkptShow = 64,
  kForCkptVerify = 128,
  kForCkptExport = 256,
  kForCkptConvert = 512,
  kForCkptPrune = 1024,
  kForTokens = 4096,
  kForPlan = 2048,
  kForCkpt = kForCkptList | kForCkptShow | kForCkptVerify | kForCkptExport | kForCkptConvert |
             kForCkptPrune,
};

struct OptionRow {
  // As CLI11 takes them: "--nproc,--nproc-per-node". The first is the one in messages.
  const char* names;
  const char* value;  // "" for a flag
  unsigned commands;
  const char* group;  // "": not in the help
  const char* text;
  absl::Status (*set)(const std::string& value, Options* options);
  // The PET_ variable that torchrun reads for it, without PET_; "" for none. Of a flag: 0 or 1.
  const char* pet = "";
  bool repeats = false;  // each value counts; else the last one
};

using OptionRowList = std::vector<OptionRow>;

const std::vector<OptionRow>& OptionRows();
// "--nproc", "-m": as the help shows it.
std::string_view FirstName(const OptionRow& row);
// The first name with two hyphens: "--nproc", "--module". Messages and CLI11 get this one.
std::string_view LongName(const OptionRow& row);
// The row of a name such as "--nproc-per-node"; nullptr when the command has none.
const OptionRow* FindOption(std::string_view name, unsigned command);
// `; did you mean --nproc?` or an empty string.
std::string SuggestOption(std::string_view name, unsigned command);

}  // namespace ddprun::cli
