#include "common/config/combinations.h"

#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ddprun {
namespace {

using C = TrainConfig;

// `section.name` has a meaning only where `decides` is one of `values`.
struct Dependence {
  absl::string_view section;
  absl::string_view name;
  absl::string_view decides_section;
  absl::string_view decides;
  std::string C::*value;
  std::vector<absl::string_view> values;
};

// What each of our own models makes of [model]; one that a user has added may read any key.
constexpr absl::string_view kOwnModels[] = {"simple_cnn", "resnet18", "resnet50",
                                            "bert",       "gpt",      "torchscript"};

Dependence OfModels(absl::string_view section, absl::string_view name,
                    std::vector<absl::string_view> models) {
  return {section, name, "model", "name", &C::model_name, std::move(models)};
}

Dependence OfData(absl::string_view name, std::vector<absl::string_view> kinds) {
  return {"data", name, "data", "kind", &C::data_kind, std::move(kinds)};
}

std::vector<Dependence> TrainingDependences() {
  return {
      {"train", "momentum", "train", "optimizer", &C::train_optimizer, {"sgd"}},
      {"train", "nesterov", "train", "optimizer", &C::train_optimizer, {"sgd"}},
      {"train", "betas", "train", "optimizer", &C::train_optimizer, {"adam", "adamw"}},
      {"train", "eps", "train", "optimizer", &C::train_optimizer, {"adam", "adamw"}},
      {"train", "decay_epochs", "train", "schedule", &C::train_schedule, {"step"}},
      {"train", "gamma", "train", "schedule", &C::train_schedule, {"step"}},
      {"train", "min_lr", "train", "schedule", &C::train_schedule, {"cosine", "linear"}},
      {"precision", "loss_scale", "precision", "amp", &C::precision_amp, {"fp16"}},
      {"precision", "loss_scale_growth_steps", "precision", "amp", &C::precision_amp, {"fp16"}},
  };
}

std::vector<Dependence> DataDependences() {
  return {
      OfData("dir", {"idx", "cifar10", "image_folder", "tokens"}),
      OfData("resize", {"image_folder"}),
      OfData("image_size", {"image_folder", "synthetic"}),
      OfData("token_type", {"tokens"}),
      OfData("task", {"tokens", "synthetic"}),
      OfData("samples", {"synthetic"}),
      OfData("channels", {"synthetic"}),
  };
}

// `classes` of simple_cnn is held against the labels.
std::vector<Dependence> ModelDependences() {
  return {
      OfModels("model", "classes", {"simple_cnn", "resnet18", "resnet50", "torchscript"}),
      OfModels("model", "stem", {"resnet18", "resnet50"}),
      OfModels("model", "vocab_size", {"bert", "gpt", "torchscript"}),
      OfModels("model", "sequence_length", {"bert", "gpt", "torchscript"}),
      OfModels("model", "d_model", {"bert", "gpt"}),
      OfModels("model", "heads", {"bert", "gpt"}),
      OfModels("model", "layers", {"bert", "gpt"}),
      OfModels("model", "d_ff", {"bert", "gpt"}),
      OfModels("model", "dropout", {"bert", "gpt"}),
      OfModels("model", "file", {"torchscript"}),
  };
}

absl::Status Fail(const std::string& where, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

// Where a key was given; its place in the file when it was not.
std::string Where(const std::string& file_name, const GivenKeys& keys, absl::string_view section,
                  absl::string_view name) {
  const auto given = keys.find(FindKey(section, name));
  return given != keys.end() ? given->second.where
                             : absl::StrCat(file_name, ": [", section, "] ", name);
}

// Keys of [data] that no sample of this kind would feel.
absl::Status CheckData(const std::string& file_name, const TrainConfig& config,
                       const GivenKeys& keys) {
  const auto fail = [&](absl::string_view name, const std::string& what) {
    return Fail(Where(file_name, keys, "data", name), what);
  };
  const std::string& kind = config.data_kind;
  const bool colour = kind == "cifar10" || kind == "image_folder";
  if (config.data_augment == "standard" && !colour) {
    return fail(
        "augment",
        absl::StrCat("\"standard\" is for cifar10 and image_folder, not for [data] kind = \"", kind,
                     "\""));
  }
  if (config.data_normalize == "imagenet" && kind == "idx") {
    return fail("normalize",
                "\"imagenet\" is for images of three colours, idx has grey ones; use \"auto\"");
  }
  if (config.data_normalize != "auto" && !colour && kind != "idx") {
    return fail("normalize", absl::StrCat("has no meaning with [data] kind = \"", kind, "\""));
  }
  const bool masked =
      config.data_task == "masked" || (config.data_task == "auto" && config.model_name == "bert");
  for (absl::string_view name : {"mask_probability", "mask_token"}) {
    if (masked || keys.count(FindKey("data", name)) == 0) continue;
    return fail(name,
                "has no meaning without the masked task ([data] task = \"masked\", or model bert)");
  }
  return absl::OkStatus();
}

std::string Quoted(const std::vector<absl::string_view>& values) {
  return absl::StrJoin(values, " or ", [](std::string* out, absl::string_view value) {
    absl::StrAppend(out, "\"", value, "\"");
  });
}

// Whether the command line decided, so that a key of the file was meant for what the file decides.
bool DecidedOnCommandLine(const GivenKeys& keys, const Given& given, absl::string_view section,
                          absl::string_view name) {
  const auto decided = keys.find(FindKey(section, name));
  return !given.from_override && decided != keys.end() && decided->second.from_override;
}

void PassOver(GivenKeys::iterator given, TrainConfig* config, GivenKeys* keys) {
  std::visit([&](auto field) { config->*field = TrainConfig{}.*field; }, given->first->field);
  keys->erase(given);
}

absl::Status CheckDependences(const std::vector<Dependence>& all, TrainConfig* config,
                              GivenKeys* keys) {
  for (const Dependence& item : all) {
    const auto given = keys->find(FindKey(item.section, item.name));
    if (given == keys->end()) continue;
    const std::string& value = config->*item.value;
    if (absl::c_linear_search(item.values, value)) continue;
    if (item.decides_section == "model" && !absl::c_linear_search(kOwnModels, value)) continue;
    if (DecidedOnCommandLine(*keys, given->second, item.decides_section, item.decides)) {
      PassOver(given, config, keys);
      continue;
    }
    return Fail(
        given->second.where,
        absl::StrCat("has no meaning with [", item.decides_section, "] ", item.decides, " = \"",
                     value, "\"; only with ", Quoted(item.values), "; leave it away"));
  }
  return absl::OkStatus();
}

// What belongs to evaluations, where there are none.
absl::Status CheckEvaluation(const std::string& file_name, TrainConfig* config, GivenKeys* keys) {
  if (config->train_evaluate) return absl::OkStatus();
  const auto every = keys->find(FindKey("train", "evaluate_every_steps"));
  if (every != keys->end() && config->train_evaluate_every_steps > 0) {
    if (!DecidedOnCommandLine(*keys, every->second, "train", "evaluate")) {
      return Fail(every->second.where,
                  "has no meaning with [train] evaluate = false; leave it away, or set evaluate = "
                  "true");
    }
    PassOver(every, config, keys);
  }
  for (auto [section, name, wanted] :
       {std::tuple{"train", "early_stop", config->train_early_stop > 0},
        std::tuple{"checkpoint", "best", config->checkpoint_best}}) {
    const auto given = keys->find(FindKey(section, name));
    if (wanted && given != keys->end() &&
        DecidedOnCommandLine(*keys, given->second, "train", "evaluate")) {
      PassOver(given, config, keys);
    } else if (wanted) {
      return Fail(Where(file_name, *keys, section, name),
                  "needs [train] evaluate = true, which decides what is best");
    }
  }
  return absl::OkStatus();
}

// Keys whose values contradict each other.
absl::Status CheckValues(const std::string& file_name, const TrainConfig& config,
                         const GivenKeys& keys) {
  const auto where = [&](absl::string_view section, absl::string_view name) {
    return Where(file_name, keys, section, name);
  };
  if (config.train_nesterov && config.train_momentum == 0) {
    return Fail(where("train", "nesterov"), "needs [train] momentum greater than 0");
  }
  if (!config.model_weights_except.empty() && config.model_weights.empty()) {
    return Fail(where("model", "weights_except"),
                "has no meaning without [model] weights: every weight is a new one");
  }
  if (config.model_name == "torchscript" && config.model_file.empty()) {
    return Fail(where("model", "file"),
                "missing; model torchscript needs the file that torch.jit.save wrote");
  }
  if (config.model_name == "torchscript" && config.precision_recompute == "blocks") {
    return Fail(where("precision", "recompute"),
                "\"blocks\" has no effect on model torchscript, which is one block; use \"none\", "
                "and a smaller [data] batch_size or [precision] amp to save memory");
  }
  if (config.train_steps > 0 && config.train_warmup_steps > config.train_steps) {
    return Fail(where("train", "warmup_steps"),
                absl::StrCat("is ", config.train_warmup_steps, ", longer than the whole run of ",
                             config.train_steps, " steps; make it smaller, or the run longer"));
  }
  if (config.train_min_lr > config.train_lr) {
    return Fail(where("train", "min_lr"), "is greater than [train] lr, where the run begins");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCombinations(const std::string& file_name, TrainConfig* config, GivenKeys* keys) {
  absl::Status status;
  for (const auto& part : {TrainingDependences(), DataDependences(), ModelDependences()}) {
    if (status.ok()) status = CheckDependences(part, config, keys);
  }
  if (status.ok()) status = CheckData(file_name, *config, *keys);
  if (status.ok()) status = CheckValues(file_name, *config, *keys);
  if (status.ok()) status = CheckEvaluation(file_name, config, keys);
  return status;
}

}  // namespace ddprun
