// Finds where the options end, which CLI11 cannot: what follows belongs to the program, whatever it
// looks like, and an unknown option before it is an error.
#include "launcher/cli/options.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/cli/app.h"
#include "launcher/cli/option_table.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

struct Split {
  std::string run;                   // of logs
  std::vector<std::string> options;  // "--name" or "--name=value", spelled as in the table
  std::string config_path;
  std::vector<std::string> program;
  bool torchrun_way = false;
};

// Commands of the documents that this version does not have. Running a program of that name instead
// would be a surprise (there is a /bin/ps).
constexpr std::array<std::string_view, 9> kLaterCommands = {
    "daemon", "submit", "ps", "status", "attach", "stop", "ckpt", "plan", "tune"};

bool IsConfig(const std::string& text) {
  return absl::EndsWith(text, ".cfg");
}

// torchrun takes --nproc_per_node for --nproc-per-node; so do we, for every option.
std::string WithHyphens(std::string name) {
  if (absl::StartsWith(name, "--")) std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// -r3 for -r 3, as torchrun has it; nullptr for anything else.
const OptionRow* AttachedValue(const std::string& argument, unsigned command) {
  if (argument.size() < 3 || argument[1] == '-') return nullptr;
  const OptionRow* row = FindOption(argument.substr(0, 2), command);
  const bool digit = argument[2] >= '0' && argument[2] <= '9';
  return row != nullptr && row->value[0] != '\0' && digit ? row : nullptr;
}

// Takes the option at arguments[*i], and its value where that is the next argument.
absl::Status TakeOption(const std::vector<std::string>& arguments, unsigned command, size_t* i,
                        Split* split) {
  const std::string& argument = arguments[*i];
  const size_t equals = argument.find('=');
  const std::string typed = argument.substr(0, equals);
  const OptionRow* row = FindOption(WithHyphens(typed), command);
  if (row == nullptr) {
    const OptionRow* attached = AttachedValue(argument, command);
    if (attached != nullptr) {
      split->options.push_back(
          absl::StrCat(std::string(LongName(*attached)), "=", argument.substr(2)));
      return absl::OkStatus();
    }
  }
  if (row == nullptr) {
    const char* where = command == kForLogs     ? " (ddprun logs --help lists all)"
                        : command == kForAgent  ? " (ddprun agent --help lists all)"
                        : command == kForDoctor ? " (ddprun doctor --help lists all)"
                                                : " (ddprun --help lists all; what belongs to your "
                                                  "own program stands behind its name)";
    return absl::InvalidArgumentError(absl::StrCat(
        net::Shown(typed), ": unknown option", SuggestOption(WithHyphens(typed), command), where));
  }
  const std::string name(LongName(*row));
  if (row->value[0] == '\0') {
    if (equals != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(argument, ": ", typed, " takes no value; write ", typed));
    }
    split->options.push_back(name);
    return absl::OkStatus();
  }
  std::string value;
  if (equals != std::string::npos) {
    value = argument.substr(equals + 1);
  } else if (*i + 1 < arguments.size()) {
    value = arguments[++*i];
  }
  if (value.empty())
    return absl::InvalidArgumentError(
        absl::StrCat(typed, ": its value is missing: ", typed, " ", row->value));
  split->options.push_back(absl::StrCat(name, "=", value));
  return absl::OkStatus();
}

bool Holds(const std::vector<std::string>& options, std::string_view name) {
  return std::any_of(options.begin(), options.end(), [&](const std::string& option) {
    return option.substr(0, option.find('=')) == name;
  });
}

// The first word is a program's name, whatever it looks like: python -m trainer.cfg
bool NamesProgram(const Split& split) {
  return Holds(split.options, "--module") || Holds(split.options, "--no-python") ||
         Holds(split.options, "--run-path");
}

absl::StatusOr<Split> SplitArguments(const std::vector<std::string>& arguments, size_t first,
                                     unsigned command) {
  Split split;
  for (size_t i = first; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--" && command == kForLogs) {
      return absl::InvalidArgumentError("--: logs runs no program; give a run folder or a job id");
    }
    const bool option = !argument.empty() && argument[0] == '-' && argument != "--";
    if (command == kForDoctor && !option) {
      return absl::InvalidArgumentError(
          absl::StrCat(argument, ": doctor runs no program; other hosts are --peers a,b"));
    }
    if (argument == "--") {
      split.program.assign(arguments.begin() + static_cast<ptrdiff_t>(i) + 1, arguments.end());
      if (split.program.empty())
        return absl::InvalidArgumentError("--: the program behind it is missing");
      if (split.program[0].empty())
        return absl::InvalidArgumentError("--: the name of the program behind it is empty");
      break;
    }
    if (argument.empty()) {
      return absl::InvalidArgumentError(
          "\"\": an empty argument is no program; is a variable of your script not set?");
    }
    if (argument[0] == '-') {
      absl::Status status = TakeOption(arguments, command, &i, &split);
      if (!status.ok()) return status;
    } else if (command == kForLogs) {
      if (!split.run.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(argument, ": logs shows one run at a time, and ", split.run, " is given"));
      }
      split.run = argument;
    } else if (split.config_path.empty() && IsConfig(argument) && !NamesProgram(split)) {
      split.config_path = argument;
    } else if (!split.config_path.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(argument, ": nothing but options may stand behind ", split.config_path,
                       "; a program has no .cfg before it"));
    } else {
      split.torchrun_way = true;
      split.program.assign(arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end());
      break;
    }
  }
  return split;
}

}  // namespace

absl::StatusOr<Options> ParseCommandLine(const std::vector<std::string>& arguments,
                                         const std::string& name,
                                         const std::map<std::string, std::string>& environment) {
  Options options;
  unsigned command = kForRun;
  size_t first = 0;
  if (!arguments.empty()) {
    const std::string& word = arguments[0];
    for (const char* own : {"run", "coordinator", "agent", "logs", "doctor"}) {
      if (word == own) first = 1;
    }
    if (word == "coordinator") {
      options.command = Command::kCoordinator;
      command = kForCoordinator;
    } else if (word == "agent") {
      options.command = Command::kAgent;
      command = kForAgent;
    } else if (word == "logs") {
      options.command = Command::kLogs;
      command = kForLogs;
    } else if (word == "doctor") {
      options.command = Command::kDoctor;
      command = kForDoctor;
    } else if (std::find(kLaterCommands.begin(), kLaterCommands.end(), word) !=
               kLaterCommands.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(word,
                       ": this version has no such command; to run a program of that "
                       "name: ddprun -- ",
                       word));
    }
  }
  absl::StatusOr<Split> split = SplitArguments(arguments, first, command);
  if (!split.ok()) return split.status();
  if (arguments.empty() || (arguments.size() == 1 && arguments[0] == "help") ||
      Holds(split->options, "--help")) {
    options.help = HelpText(options.command, name);
    options.command = Command::kHelp;
    return options;
  }
  if (Holds(split->options, "--version")) {
    options.command = Command::kVersion;
    return options;
  }
  options.logs.run = split->run;
  options.config_path = split->config_path;
  options.program = split->program;
  options.torchrun_way = split->torchrun_way;
  // What is given replaces what the environment says.
  absl::Status status = ApplyTorchrunVariables(environment, command, split->options, &options);
  if (status.ok()) status = ApplyOptions(split->options, &options);
  if (status.ok() && command == kForRun) status = ApplySlurm(environment, &options);
  if (status.ok()) status = CheckCombination(options);
  if (!status.ok()) return status;
  return options;
}

}  // namespace ddprun::cli
