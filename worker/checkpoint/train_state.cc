#include "worker/checkpoint/train_state.h"

#include <array>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

struct Field {
  const char* name;
  int64_t TrainState::*member;
};
constexpr Field kFields[] = {{"step", &TrainState::step},
                             {"epoch", &TrainState::epoch},
                             {"step_in_epoch", &TrainState::step_in_epoch},
                             {"samples_in_epoch", &TrainState::samples_in_epoch},
                             {"samples_seen", &TrainState::samples_seen},
                             {"world_size", &TrainState::world_size}};
// 0 in a checkpoint that was written before they existed.
constexpr Field kLaterFields[] = {
    {"data_samples", &TrainState::data_samples},
    {"evaluated_step", &TrainState::evaluated_step},
    {"best_step", &TrainState::best_step},
    {"evaluations_without_improvement", &TrainState::evaluations_without_improvement}};

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("trainer_state.json: ", what));
}

}  // namespace

std::string TrainStateToJson(const TrainState& state) {
  Json root = {{"format", kFormat}};
  for (const Field& field : kFields) root[field.name] = state.*field.member;
  for (const Field& field : kLaterFields) root[field.name] = state.*field.member;
  root["best_value"] = state.best_value;
  root["last_loss"] = state.last_loss;  // null when it is not finite
  root["seed"] = state.config.train_seed;
  root["all_reduce"] = state.all_reduce;
  root["bucket_layout"] = state.bucket_layout;
  root["config"] = Json::parse(ToJson(state.config), nullptr, false);
  return root.dump(2) + "\n";
}

absl::StatusOr<TrainState> TrainStateFromJson(const std::string& json) {
  const Json root = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return Bad("not a JSON object");
  const auto format = root.find("format");
  if (format == root.end() || *format != kFormat) {
    return Bad("of another format; it was written by another version of ddprun");
  }
  TrainState state;
  for (const Field& field : kFields) {
    const auto value = root.find(field.name);
    if (value == root.end() || !value->is_number_integer() || value->get<int64_t>() < 0) {
      return Bad(absl::StrCat(field.name, " is missing or no count"));
    }
    state.*field.member = value->get<int64_t>();
  }
  for (const Field& field : kLaterFields) {
    const auto value = root.find(field.name);
    if (value == root.end()) continue;
    if (!value->is_number_integer() || value->get<int64_t>() < 0) {
      return Bad(absl::StrCat(field.name, " is no count"));
    }
    state.*field.member = value->get<int64_t>();
  }
  const auto best = root.find("best_value");
  if (best != root.end() && best->is_number()) state.best_value = best->get<double>();
  const auto loss = root.find("last_loss");
  state.last_loss = loss != root.end() && loss->is_number() ? loss->get<double>() : 0.0;
  const auto path = root.find("all_reduce");
  if (path != root.end() && path->is_string()) state.all_reduce = path->get<std::string>();
  const auto layout = root.find("bucket_layout");
  if (layout == root.end() || !layout->is_string())
    return Bad("bucket_layout is missing or no string");
  state.bucket_layout = layout->get<std::string>();
  const auto config = root.find("config");
  if (config == root.end()) return Bad("config is missing");
  absl::StatusOr<TrainConfig> parsed = FromJson(config->dump());
  if (!parsed.ok()) return Bad(std::string(parsed.status().message()));
  state.config = *std::move(parsed);
  return state;
}

}  // namespace ddprun
