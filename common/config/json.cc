// TrainConfig ↔ JSON, and the comparison for a resume.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/config/key_table.h"
#include "common/config/train_config.h"

namespace ddprun {
namespace {

using Json = nlohmann::ordered_json;

Json ToJsonValue(const ConfigValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, OtherValue>) {
          return v.description;
        } else {
          return v;
        }
      },
      value);
}

ConfigValue FromJsonValue(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_array() && json.size() == 2 && json[0].is_number() && json[1].is_number()) {
    return std::array<double, 2>{json[0].get<double>(), json[1].get<double>()};
  }
  return OtherValue{json.type_name()};
}

// Lengths that are not given are zero, which is not a value one may write.
bool IsUnset(const KeySpec& key, const TrainConfig& config) {
  const ConfigValue value = GetKey(key, config);
  const auto* number = std::get_if<int64_t>(&value);
  const auto* text = std::get_if<std::string>(&value);
  return (number != nullptr && *number == 0 && key.min > 0) ||
         (text != nullptr && text->empty() && key.supported.empty());
}

}  // namespace

std::string ToJson(const TrainConfig& config) {
  Json root = Json::object();
  for (const KeySpec& key : TrainConfigKeys()) {
    if (IsUnset(key, config)) continue;
    root[std::string(key.section)][std::string(key.name)] = ToJsonValue(GetKey(key, config));
  }
  return root.dump();
}

absl::StatusOr<TrainConfig> FromJson(absl::string_view json) {
  const Json root = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return absl::InvalidArgumentError("resolved configuration: not a JSON object");
  }
  TrainConfig config;
  for (const auto& [section, keys] : root.items()) {
    if (!keys.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat("resolved configuration: [", section, "] is not an object"));
    }
    for (const auto& [name, value] : keys.items()) {
      const std::string where =
          absl::StrCat("resolved configuration: [", section, "] ", name, ": ");
      const KeySpec* key = FindKey(section, name);
      if (key == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, "unknown key; launcher and worker are of different versions"));
      }
      if (absl::Status status = SetKey(*key, FromJsonValue(value), &config); !status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(where, status.message()));
      }
    }
  }
  return config;
}

absl::Status CompareForResume(const TrainConfig& previous, const TrainConfig& now) {
  for (const KeySpec& key : TrainConfigKeys()) {
    if (key.resume_may_change) continue;
    const std::string before = FormatValue(GetKey(key, previous));
    const std::string after = FormatValue(GetKey(key, now));
    if (before == after) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("[", key.section, "] ", key.name, ": is ", after,
                     ", but the run that is to be resumed has ", before,
                     "; set it back, or start a new run in another --run-dir"));
  }
  return absl::OkStatus();
}

}  // namespace ddprun
