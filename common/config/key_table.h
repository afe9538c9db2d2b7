// The table of all train.cfg keys: type, limits, supported values, and whether a resume may change
// it. This is the one place to widen when a model, a data kind or a precision is built. Read-only,
// thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/config/train_config.h"

namespace ddprun {

// A value as TOML or JSON gave it. A type that no key has (a date, a table) arrives as Other.
struct OtherValue {
  std::string description;  // "a table", "a date"
};
using ConfigValue =
    std::variant<std::string, int64_t, double, bool, std::array<double, 2>, OtherValue>;

using ConfigField =
    std::variant<std::string TrainConfig::*, int64_t TrainConfig::*, double TrainConfig::*,
                 bool TrainConfig::*, std::array<double, 2> TrainConfig::*>;

struct KeySpec {
  absl::string_view section;
  absl::string_view name;
  ConfigField field;
  // Strings: what this version can do, and what is named in the documents but not built yet.
  std::vector<absl::string_view> supported = {};
  std::vector<absl::string_view> planned = {};
  // Numbers: inclusive limits; `exclusive_min` for "greater than".
  double min = 0;
  double max = 0;
  bool exclusive_min = false;
  // A number above `supported_max` is legal but not built yet (0: no such limit).
  double supported_max = 0;
  bool resume_may_change = false;
  // What people type instead.
  std::vector<absl::string_view> aliases = {};
};

const std::vector<KeySpec>& TrainConfigKeys();
const KeySpec* FindKey(absl::string_view section, absl::string_view name);
bool IsSection(absl::string_view section);

// Checks `value` against the key and stores it. The message begins after the key's name
// ("expected a number, found the string \"abc\""); callers put file, line and key before it.
absl::Status SetKey(const KeySpec& key, const ConfigValue& value, TrainConfig* config);
ConfigValue GetKey(const KeySpec& key, const TrainConfig& config);
std::string FormatValue(const ConfigValue& value);

// `; did you mean "lr"?` or an empty string: the nearest key (in other sections too) or section.
std::string SuggestKey(absl::string_view section, absl::string_view name);
std::string SuggestSection(absl::string_view section);

}  // namespace ddprun
