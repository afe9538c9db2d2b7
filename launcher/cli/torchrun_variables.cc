// PET_NNODES and its like: torchrun's options from the environment. What is given on the command
// line counts, also where another option says the same thing.
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launcher/cli/app.h"
#include "launcher/cli/option_table.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

// The variable of the first is not looked at when the second is given.
constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kReplacedBy = {{
    {"--rdzv-id", "--job-id"},
    {"--rdzv-id", "--standalone"},
    {"--rdzv-endpoint", "--standalone"},
    {"--rdzv-endpoint", "--master-addr"},
    {"--rdzv-endpoint", "--master-port"},
    {"--master-addr", "--rdzv-endpoint"},
    {"--master-port", "--rdzv-endpoint"},
    {"--log-dir", "--run-dir"},
    {"--local-ranks-filter", "--log-ranks"},
    {"--module", "--no-python"},
    {"--no-python", "--module"},
    {"--module", "--run-path"},
}};

bool Given(const std::vector<std::string>& given, std::string_view name) {
  for (const std::string& option : given) {
    if (std::string_view(option).substr(0, option.find('=')) == name) return true;
  }
  return false;
}

bool Replaced(const std::vector<std::string>& given, std::string_view name) {
  if (Given(given, name)) return true;
  for (const auto& [variable, other] : kReplacedBy) {
    if (variable == name && Given(given, other)) return true;
  }
  return false;
}

// torchrun's default is the empty text for these, so an empty variable says nothing.
bool MayBeEmpty(std::string_view name) {
  return name == "--rdzv-endpoint" || name == "--rdzv-conf" || name == "--local-ranks-filter" ||
         name == "--duplicate-stdout-filters" || name == "--duplicate-stderr-filters" ||
         name == "--log-dir" || name == "--local-addr" || name == "--rdzv-id";
}

absl::Status Bad(const std::string& name, const std::string& value, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, "=", net::Shown(value), " (environment): ", text, "; or unset ", name));
}

}  // namespace

absl::Status ApplyTorchrunVariables(const std::map<std::string, std::string>& environment,
                                    unsigned command, const std::vector<std::string>& given,
                                    Options* options) {
  for (const OptionRow& row : OptionRows()) {
    if (row.pet[0] == '\0' || (row.commands & command) == 0) continue;
    const std::string name = absl::StrCat("PET_", row.pet);
    const auto found = environment.find(name);
    if (found == environment.end() || Replaced(given, LongName(row))) continue;
    const std::string& value = found->second;
    if (row.value[0] == '\0') {
      // A flag is a whole number to torchrun, and set unless it is 0.
      int64_t number = 0;
      if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(value), &number)) {
        return Bad(name, value, "give 1 or 0");
      }
      if (number == 0) continue;
    } else if (value.empty()) {
      if (MayBeEmpty(LongName(row))) continue;
      return Bad(name, value, absl::StrCat("is empty; give ", row.value));
    }
    absl::Status status = row.set(value, options);
    if (!status.ok()) return Bad(name, value, status.message());
  }
  return absl::OkStatus();
}

}  // namespace ddprun::cli
