// TOML and overrides → TrainConfig. toml++ is used without exceptions.
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/config/combinations.h"
#include "common/config/key_table.h"
#include "common/config/train_config.h"

namespace ddprun {
namespace {

ConfigValue FromToml(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* real = node.as_floating_point()) return real->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* array = node.as_array()) {
    if (array->size() != 2) return OtherValue{absl::StrCat("an array of ", array->size())};
    std::array<double, 2> pair;
    for (size_t i = 0; i < 2; ++i) {
      const std::optional<double> number = (*array)[i].value<double>();
      if (!number || !(*array)[i].is_number()) return OtherValue{"an array that holds no numbers"};
      pair[i] = *number;
    }
    return pair;
  }
  return OtherValue{node.is_table() ? "a table" : "a date or time"};
}

absl::Status Fail(const std::string& where, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

absl::Status Apply(const KeySpec& key, const ConfigValue& value, Given given, TrainConfig* config,
                   GivenKeys* keys) {
  if (absl::Status status = SetKey(key, value, config); !status.ok()) {
    return Fail(given.where, std::string(status.message()));
  }
  (*keys)[&key] = std::move(given);
  return absl::OkStatus();
}

absl::Status ApplyTable(const toml::table& root, const std::string& file_name, TrainConfig* config,
                        GivenKeys* keys) {
  const auto at = [&](const toml::source_region& source) {
    return absl::StrCat(file_name, ":", source.begin.line);
  };
  for (const auto& [section_key, section_node] : root) {
    const std::string section(section_key.str());
    const toml::table* table = section_node.as_table();
    if (table == nullptr) {
      return Fail(absl::StrCat(at(section_key.source()), ": ", section),
                  absl::StrCat("stands outside of a section", SuggestKey("", section)));
    }
    if (!IsSection(section)) {
      return Fail(absl::StrCat(at(section_key.source()), ": [", section, "]"),
                  absl::StrCat("unknown section", SuggestSection(section)));
    }
    for (const auto& [name_key, node] : *table) {
      const std::string name(name_key.str());
      const std::string where = absl::StrCat(at(name_key.source()), ": [", section, "] ", name);
      const KeySpec* key = FindKey(section, name);
      if (key == nullptr) {
        return Fail(where, absl::StrCat("unknown key", SuggestKey(section, name)));
      }
      if (absl::Status status = Apply(*key, FromToml(node), {where, false}, config, keys);
          !status.ok()) {
        return status;
      }
    }
  }
  return absl::OkStatus();
}

// A value of --set: TOML, and what is not TOML is a bare word.
ConfigValue ParseOverrideValue(absl::string_view text) {
  const toml::parse_result result = toml::parse(absl::StrCat("value = ", text));
  if (result && result.table().size() == 1) return FromToml(*result.table().get("value"));
  return std::string(text);
}

absl::Status ApplyOverride(const std::string& text, TrainConfig* config, GivenKeys* keys) {
  const std::string where = absl::StrCat("--set ", text);
  const size_t equals = text.find('=');
  const size_t dot = text.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
    return Fail(where, "expected section.key=value, for example train.lr=0.01");
  }
  const std::string section(absl::StripAsciiWhitespace(text.substr(0, dot)));
  const std::string name(absl::StripAsciiWhitespace(text.substr(dot + 1, equals - dot - 1)));
  if (!IsSection(section)) {
    return Fail(where, absl::StrCat("unknown section [", section, "]", SuggestSection(section)));
  }
  const KeySpec* key = FindKey(section, name);
  if (key == nullptr) {
    return Fail(where, absl::StrCat("unknown key \"", name, "\" of [", section, "]",
                                    SuggestKey(section, name)));
  }
  const absl::string_view value =
      absl::StripAsciiWhitespace(absl::string_view(text).substr(equals + 1));
  if (value.empty()) return Fail(where, "there is no value after the equals sign");
  return Apply(*key, ParseOverrideValue(value), {where, true}, config, keys);
}

// One of epochs and steps. The command line wins over the file; twice in the same place is a
// mistake.
absl::Status ResolveLength(const std::string& file_name, TrainConfig* config, GivenKeys* keys) {
  const KeySpec* epochs_key = FindKey("train", "epochs");
  const KeySpec* steps_key = FindKey("train", "steps");
  const auto epochs = keys->find(epochs_key);
  const auto steps = keys->find(steps_key);
  if (epochs == keys->end() && steps == keys->end()) {
    return Fail(absl::StrCat(file_name, ": [train] epochs"),
                "missing; give the length of the run as epochs or as steps");
  }
  if (epochs == keys->end() || steps == keys->end()) return absl::OkStatus();
  if (epochs->second.from_override == steps->second.from_override) {
    return Fail(steps->second.where, "epochs is given too; give one of epochs and steps");
  }
  if (epochs->second.from_override) {
    config->train_steps = 0;
  } else {
    config->train_epochs = 0;
  }
  return absl::OkStatus();
}

absl::Status CheckRequired(const std::string& file_name, const TrainConfig& config) {
  if (config.model_name.empty()) {
    return Fail(absl::StrCat(file_name, ": [model] name"),
                "missing; for example name = \"simple_cnn\"");
  }
  if (config.data_kind.empty()) {
    return Fail(absl::StrCat(file_name, ": [data] kind"), "missing; for example kind = \"idx\"");
  }
  if (config.data_dir.empty() && config.data_kind != "synthetic") {
    return Fail(absl::StrCat(file_name, ": [data] dir"),
                "missing; the folder that holds the data files");
  }
  return absl::OkStatus();
}

absl::Status MakeAbsolute(std::string* path) {
  if (path->empty()) return absl::OkStatus();
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(*path, error);
  if (error) return Fail(*path, absl::StrCat("no absolute path: ", error.message()));
  *path = absolute.lexically_normal().string();
  return absl::OkStatus();
}

KeyPlaces PlacesOf(const std::string& file_name, const GivenKeys& keys) {
  KeyPlaces places = {.file_name = file_name};
  for (const auto& [key, given] : keys) {
    places.by_key[absl::StrCat("[", key->section, "] ", key->name)] = given.where;
  }
  return places;
}

}  // namespace

absl::StatusOr<TrainConfig> ParseTrainConfig(absl::string_view text, const std::string& file_name,
                                             const std::vector<std::string>& overrides,
                                             KeyPlaces* places) {
  if (text.size() > kTrainConfigBytesMax) {
    return Fail(file_name, absl::StrCat("is ", text.size(), " bytes; a configuration has at most ",
                                        kTrainConfigBytesMax));
  }
  const toml::parse_result result =
      toml::parse(std::string_view(text.data(), text.size()), file_name);
  if (!result) {
    return Fail(absl::StrCat(file_name, ":", result.error().source().begin.line),
                absl::StrCat("not valid TOML: ", std::string(result.error().description())));
  }
  TrainConfig config;
  GivenKeys keys;
  if (absl::Status status = ApplyTable(result.table(), file_name, &config, &keys); !status.ok()) {
    return status;
  }
  for (const std::string& override_text : overrides) {
    if (absl::Status status = ApplyOverride(override_text, &config, &keys); !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = CheckRequired(file_name, config); !status.ok()) return status;
  if (absl::Status status = ResolveLength(file_name, &config, &keys); !status.ok()) return status;
  if (absl::Status status = CheckCombinations(file_name, &config, &keys); !status.ok())
    return status;
  for (std::string* path : {&config.data_dir, &config.model_file, &config.model_weights}) {
    if (absl::Status status = MakeAbsolute(path); !status.ok()) return status;
  }
  if (places != nullptr) *places = PlacesOf(file_name, keys);
  return config;
}

absl::StatusOr<TrainConfig> LoadTrainConfig(const std::string& path,
                                            const std::vector<std::string>& overrides,
                                            KeyPlaces* places) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return Fail(path, error ? absl::StrCat("cannot read the configuration: ", error.message())
                            : "cannot read the configuration: not a regular file");
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return Fail(path, "cannot read the configuration");
  return ParseTrainConfig(text.str(), path, overrides, places);
}

std::string WithPlace(const std::string& message, const KeyPlaces& places) {
  const size_t colon = message.find(':');
  if (message.empty() || message[0] != '[' || colon == std::string::npos) return message;
  const std::string key = message.substr(0, colon);
  const auto found = places.by_key.find(key);
  const std::string place =
      found != places.by_key.end() ? found->second : absl::StrCat(places.file_name, ": ", key);
  return place + message.substr(colon);
}

}  // namespace ddprun
