#include "common/config/combinations.h"

#include "absl/strings/str_cat.h"

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

const std::vector<Dependence>& Dependences() {
  static const auto& all = *new std::vector<Dependence>{
      {"train", "momentum", "train", "optimizer", &C::train_optimizer, {"sgd"}},
      {"train", "nesterov", "train", "optimizer", &C::train_optimizer, {"sgd"}},
      {"train", "betas", "train", "optimizer", &C::train_optimizer, {"adam", "adamw"}},
      {"train", "eps", "train", "optimizer", &C::train_optimizer, {"adam", "adamw"}},
      {"train", "decay_epochs", "train", "schedule", &C::train_schedule, {"step"}},
      {"train", "gamma", "train", "schedule", &C::train_schedule, {"step"}},
      {"train", "min_lr", "train", "schedule", &C::train_schedule, {"cosine", "linear"}},
      {"precision", "loss_scale", "precision", "amp", &C::precision_amp, {"fp16"}},
      {"precision", "loss_scale_growth_steps", "precision", "amp", &C::precision_amp, {"fp16"}},
      {"data", "resize", "data", "kind", &C::data_kind, {"image_folder"}},
      {"data", "image_size", "data", "kind", &C::data_kind, {"image_folder", "synthetic"}},
      {"data", "token_type", "data", "kind", &C::data_kind, {"tokens"}},
      {"data", "task", "data", "kind", &C::data_kind, {"tokens", "synthetic"}},
      {"data", "samples", "data", "kind", &C::data_kind, {"synthetic"}},
      {"data", "channels", "data", "kind", &C::data_kind, {"synthetic"}},
      {"model", "file", "model", "name", &C::model_name, {"torchscript"}},
  };
  return all;
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

absl::Status CheckDependences(const TrainConfig& config, const GivenKeys& keys) {
  for (const Dependence& item : Dependences()) {
    const auto given = keys.find(FindKey(item.section, item.name));
    if (given == keys.end()) continue;
    const std::string& value = config.*item.value;
    std::string expected;
    bool holds = false;
    for (absl::string_view one : item.values) {
      holds = holds || value == one;
      absl::StrAppend(&expected, expected.empty() ? "" : " or ", "\"", one, "\"");
    }
    if (holds) continue;
    return Fail(given->second.where,
                absl::StrCat("has no meaning with [", item.decides_section, "] ", item.decides,
                             " = \"", value, "\"; only with ", expected));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCombinations(const std::string& file_name, const TrainConfig& config,
                               const GivenKeys& keys) {
  if (absl::Status status = CheckDependences(config, keys); !status.ok()) return status;
  if (absl::Status status = CheckData(file_name, config, keys); !status.ok()) return status;
  const auto where = [&](absl::string_view section, absl::string_view name) {
    return Where(file_name, keys, section, name);
  };
  if (config.train_nesterov && config.train_momentum == 0) {
    return Fail(where("train", "nesterov"), "needs [train] momentum greater than 0");
  }
  if (config.model_name == "torchscript" && config.model_file.empty()) {
    return Fail(where("model", "file"),
                "missing; model torchscript needs the file that torch.jit.save wrote");
  }
  if (config.train_steps > 0 && config.train_warmup_steps > config.train_steps) {
    return Fail(where("train", "warmup_steps"),
                absl::StrCat("is ", config.train_warmup_steps, ", longer than the whole run of ",
                             config.train_steps, " steps; make it smaller, or the run longer"));
  }
  if (config.train_min_lr > config.train_lr) {
    return Fail(where("train", "min_lr"), "is greater than [train] lr, where the run begins");
  }
  const bool evaluates = config.train_evaluate;
  for (auto [section, name, wanted] :
       {std::tuple{"train", "early_stop", config.train_early_stop > 0},
        std::tuple{"checkpoint", "best", config.checkpoint_best}}) {
    if (wanted && !evaluates) {
      return Fail(where(section, name),
                  "needs [train] evaluate = true, which decides what is best");
    }
  }
  return absl::OkStatus();
}

}  // namespace ddprun
