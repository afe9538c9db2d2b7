// Finds where the options end, which CLI11 cannot: what follows belongs to the program, whatever it
// looks like, and an unknown option before it is an error.
#include "launcher/cli/options.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/cli/app.h"
#include "launcher/cli/command_words.h"
#include "launcher/cli/option_table.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

struct Split {
  std::vector<std::string> words;    // of logs, ckpt and tokens
  std::vector<std::string> options;  // "--name" or "--name=value", spelled as in the table
  std::string config_path;
  std::vector<std::string> program;
  bool torchrun_way = false;
};

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
absl::Status TakeOption(const std::vector<std::string>& arguments, const CommandWords& own,
                        size_t* i, Split* split) {
  const unsigned command = own.bits;
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
    const bool of_job = (command & (kForRun | kForCoordinator)) != 0;
    const std::string where =
        of_job ? " (ddprun --help lists all; what belongs to your own program stands behind its "
                 "name)"
               : absl::StrCat(" (ddprun ", own.name, " --help lists all)");
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

absl::StatusOr<Split> SplitArguments(const std::vector<std::string>& arguments,
                                     const CommandWords& own) {
  const unsigned command = own.bits;
  Split split;
  for (size_t i = own.words; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const bool takes_words = (command & (kForLogs | kForCkpt | kForTokens)) != 0;
    if (argument == "--" && takes_words) {
      return absl::InvalidArgumentError(
          absl::StrCat("--: ", own.name, " runs no program; what it reads is named without --"));
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
      absl::Status status = TakeOption(arguments, own, &i, &split);
      if (!status.ok()) return status;
    } else if (takes_words) {
      if (command == kForLogs && !split.words.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            argument, ": logs shows one run at a time, and ", split.words[0], " is given"));
      }
      split.words.push_back(argument);
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
  const absl::StatusOr<CommandWords> own = FindCommand(arguments);
  if (!own.ok()) return own.status();
  const unsigned command = own->bits;
  Options options;
  options.command = own->command;
  options.ckpt.action = own->ckpt;
  absl::StatusOr<Split> split = SplitArguments(arguments, *own);
  if (!split.ok()) return split.status();
  const bool no_action =
      options.command == Command::kCkpt && options.ckpt.action == CkptAction::kNone;
  if (arguments.empty() || (arguments.size() == 1 && arguments[0] == "help") || no_action ||
      Holds(split->options, "--help")) {
    options.help = HelpText(options.command, name);
    options.command = Command::kHelp;
    return options;
  }
  if (Holds(split->options, "--version")) {
    options.command = Command::kVersion;
    return options;
  }
  if (options.command == Command::kCkpt) {
    options.ckpt.words = split->words;
  } else if (options.command == Command::kTokens) {
    options.tokens.inputs = split->words;
  } else if (!split->words.empty()) {
    options.logs.run = split->words[0];
  }
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
