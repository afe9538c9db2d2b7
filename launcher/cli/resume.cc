#include "launcher/cli/resume.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace ddprun::cli {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Unreadable(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(JoinPath(path, "job.json"), ": ", why,
                                                 "; start a new run in another --run-dir"));
}

// Strings, numbers, booleans and arrays of numbers are written alike in JSON and TOML. Defaults are
// left out: given in a file, some would contradict others (momentum with adam).
std::string TomlOf(const Json& train) {
  const Json defaults = Json::parse(ToJson(TrainConfig{}));
  std::string text;
  for (const auto& [section, keys] : train.items()) {
    absl::StrAppend(&text, "[", section, "]\n");
    for (const auto& [key, value] : keys.items()) {
      const auto standard = defaults.find(section);
      if (standard != defaults.end() && standard->contains(key) && standard->at(key) == value) {
        continue;
      }
      absl::StrAppend(&text, key, " = ", value.dump(), "\n");
    }
  }
  return text;
}

}  // namespace

absl::StatusOr<PreviousRun> ReadPreviousRun(const RunFolderState& folder, const std::string& path) {
  const Json job = Json::parse(folder.job_json, nullptr, false);
  if (!job.is_object()) return Unreadable(path, "is not a JSON object");
  PreviousRun previous;
  google::protobuf::util::JsonParseOptions parse;
  parse.ignore_unknown_fields = true;  // facts that are not part of the spec
  const auto status =
      google::protobuf::util::JsonStringToMessage(folder.job_json, &previous.spec, parse);
  if (!status.ok())
    return Unreadable(path, absl::StrCat("is no job: ", status.message().ToString()));
  const auto train = job.find("train");
  if (train == job.end()) {
    if (previous.spec.program().empty())
      return Unreadable(path, "names no program and no training");
    return previous;
  }
  const absl::StatusOr<TrainConfig> config = FromJson(train->dump());
  if (!config.ok()) return Unreadable(path, std::string(config.status().message()));
  previous.trainer = true;
  previous.config = *config;
  previous.config_toml = TomlOf(*train);
  return previous;
}

bool AsksForMore(const TrainConfig& previous, const TrainConfig& now, uint64_t final_step) {
  if (now.train_steps > 0 && static_cast<uint64_t>(now.train_steps) <= final_step) return false;
  const bool epochs = previous.train_epochs > 0 && now.train_epochs > 0;
  const bool steps = previous.train_steps > 0 && now.train_steps > 0;
  if (epochs) return now.train_epochs > previous.train_epochs;
  if (steps) return now.train_steps > previous.train_steps;
  return true;  // another unit: the trainer compares it with what is done
}

}  // namespace ddprun::cli
