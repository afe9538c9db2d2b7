#include "launcher/cli/command_words.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/edit_distance.h"
#include "launcher/cli/option_table.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

constexpr CommandWords kCommands[] = {
    {Command::kRun, CkptAction::kNone, kForRun, 1, "run"},
    {Command::kCoordinator, CkptAction::kNone, kForCoordinator, 1, "coordinator"},
    {Command::kAgent, CkptAction::kNone, kForAgent, 1, "agent"},
    {Command::kLogs, CkptAction::kNone, kForLogs, 1, "logs"},
    {Command::kDoctor, CkptAction::kNone, kForDoctor, 1, "doctor"},
    {Command::kTokens, CkptAction::kNone, kForTokens, 1, "tokens"},
    {Command::kPlan, CkptAction::kNone, kForPlan, 1, "plan"},
};

constexpr CommandWords kCkptCommands[] = {
    {Command::kCkpt, CkptAction::kList, kForCkptList, 2, "ckpt ls"},
    {Command::kCkpt, CkptAction::kShow, kForCkptShow, 2, "ckpt show"},
    {Command::kCkpt, CkptAction::kVerify, kForCkptVerify, 2, "ckpt verify"},
    {Command::kCkpt, CkptAction::kExport, kForCkptExport, 2, "ckpt export"},
    {Command::kCkpt, CkptAction::kConvert, kForCkptConvert, 2, "ckpt convert"},
    {Command::kCkpt, CkptAction::kPrune, kForCkptPrune, 2, "ckpt prune"},
};
constexpr size_t kCkptPrefix = 5;  // "ckpt "

// Commands of the documents that this version does not have. Running a program of that name instead
// would be a surprise (there is a /bin/ps).
constexpr std::array<std::string_view, 7> kLaterCommands = {"daemon", "submit", "ps",  "status",
                                                            "attach", "stop",   "tune"};

absl::StatusOr<CommandWords> FindCkpt(const std::vector<std::string>& arguments) {
  CommandWords all{Command::kCkpt, CkptAction::kNone, kForCkpt, 1, "ckpt"};
  if (arguments.size() < 2 || (!arguments[1].empty() && arguments[1][0] == '-')) return all;
  const std::string& word = arguments[1];
  std::string list, nearest;
  for (const CommandWords& own : kCkptCommands) {
    const std::string_view action = std::string_view(own.name).substr(kCkptPrefix);
    if (word == action) return own;
    absl::StrAppend(&list, list.empty() ? "" : ", ",
                    absl::string_view(action.data(), action.size()));
    constexpr size_t kNear = 2;
    if (word.size() < 20 && EditDistance(word, action) <= kNear) nearest = std::string(action);
  }
  if (word == "list") nearest = "ls";
  return absl::InvalidArgumentError(
      absl::StrCat("ckpt ", net::Shown(word), ": there is no such command",
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"),
                   " (there are ", list, "; ddprun ckpt --help shows more)"));
}

}  // namespace

absl::StatusOr<CommandWords> FindCommand(const std::vector<std::string>& arguments) {
  CommandWords run{Command::kRun, CkptAction::kNone, kForRun, 0, ""};
  if (arguments.empty()) return run;
  const std::string& word = arguments[0];
  for (const CommandWords& own : kCommands) {
    if (word != own.name) continue;
    CommandWords found = own;
    if (found.command == Command::kRun) found.name = "";
    return found;
  }
  if (word == "ckpt") return FindCkpt(arguments);
  if (std::find(kLaterCommands.begin(), kLaterCommands.end(), word) != kLaterCommands.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        word, ": this version has no such command; to run a program of that name: ddprun -- ",
        word));
  }
  return run;
}

}  // namespace ddprun::cli
