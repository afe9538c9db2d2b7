// The check of the data before anything is started. Mirrors what the worker will do with the same
// files.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/config/data_checks.h"
#include "common/config/train_config.h"
#include "common/idx.h"

namespace ddprun {
namespace {

// What each model can take; grows with the models.
struct ModelInput {
  const char* model;
  int64_t rows;
  int64_t columns;
  int classes;
};
constexpr ModelInput kModelInputs[] = {{"simple_cnn", 28, 28, 10}};

absl::Status CheckModelInput(const TrainConfig& config, const IdxFiles& files,
                             const IdxSplit& split) {
  for (const ModelInput& input : kModelInputs) {
    if (config.model_name != input.model) continue;
    if (split.images.shape[1] != input.rows || split.images.shape[2] != input.columns) {
      return absl::InvalidArgumentError(absl::StrCat(
          files.images, ": images are ", split.images.shape[1], " x ", split.images.shape[2],
          ", but model ", input.model, " takes ", input.rows, " x ", input.columns));
    }
    const auto& labels = split.labels.data;
    const auto bad = std::find_if(labels.begin(), labels.end(),
                                  [&](uint8_t label) { return label >= input.classes; });
    if (bad != labels.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(files.labels, ": label ", static_cast<int>(*bad), " of sample ",
                       bad - labels.begin(), ", but model ", input.model, " has ", input.classes,
                       " classes (0 to ", input.classes - 1, ")"));
    }
  }
  return absl::OkStatus();
}

int64_t ClassesOf(const IdxSplit& split) {
  const auto& labels = split.labels.data;
  return int64_t{1} + *std::max_element(labels.begin(), labels.end());
}

absl::Status CheckLabels(const TrainConfig& config, const IdxFiles& files, const IdxSplit& split,
                         int64_t classes) {
  const auto& labels = split.labels.data;
  const auto bad =
      std::find_if(labels.begin(), labels.end(), [&](uint8_t label) { return label >= classes; });
  if (bad == labels.end()) return absl::OkStatus();
  return CheckLabel(config, files.labels, bad - labels.begin(), *bad, classes);
}

}  // namespace

int64_t StepsPerEpoch(const TrainConfig& config, int64_t samples, int world_size) {
  const int64_t ranks = world_size;
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t per_rank = config.data_drop_last ? samples / ranks : ceil_div(samples, ranks);
  const int64_t batches = config.data_drop_last ? per_rank / config.data_batch_size
                                                : ceil_div(per_rank, config.data_batch_size);
  // The tail of an epoch that is shorter than accumulation_steps batches is an update too (TR8),
  // unless there is nothing in it.
  return ceil_div(batches, config.train_accumulation_steps);
}

absl::Status CheckSampleCount(const TrainConfig& config, const std::string& what, int64_t samples,
                              int world_size) {
  if (samples < world_size) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": holds ", samples, " samples for ",
                                                   world_size, " ranks; start at most ", samples,
                                                   " (--nproc)"));
  }
  if (StepsPerEpoch(config, samples, world_size) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": holds ", samples, " samples, which gives ", world_size,
                     " ranks no whole update of batch_size ", config.data_batch_size,
                     " x accumulation_steps ", config.train_accumulation_steps,
                     ", and drop_last = true drops the rest; make batch_size or --nproc smaller, "
                     "or set drop_last = false"));
  }
  const int64_t steps = config.train_epochs * StepsPerEpoch(config, samples, world_size);
  if (config.train_epochs > 0 && config.train_warmup_steps > steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("[train] warmup_steps: is ", config.train_warmup_steps,
                     ", longer than the whole run of ", steps, " steps (", config.train_epochs,
                     " epochs with ", world_size, " ranks); make it smaller, or the run longer"));
  }
  return absl::OkStatus();
}

int64_t ClassesFor(const TrainConfig& config, int64_t classes_of_training_data) {
  return config.model_classes > 0 ? config.model_classes : classes_of_training_data;
}

absl::Status CheckLabel(const TrainConfig& config, const std::string& file, int64_t index,
                        int64_t label, int64_t classes) {
  if (label >= 0 && label < classes) return absl::OkStatus();
  const std::string begin = absl::StrCat(file, ": label ", label, " of sample ", index, ", but ");
  if (config.model_classes > 0) {
    return absl::InvalidArgumentError(absl::StrCat(begin, "[model] classes is ", classes,
                                                   " (labels 0 to ", classes - 1,
                                                   "); set it to at least ", label + 1));
  }
  return absl::InvalidArgumentError(absl::StrCat(begin, "the training data have ", classes,
                                                 " classes (labels 0 to ", classes - 1,
                                                 "); set [model] classes if the model has more"));
}

bool IsCheckedWithoutTorch(const TrainConfig& config) {
  // Only with the model it is known whether the file's weights fit, and what else is asked of it.
  if (!config.model_weights.empty() || config.parallel_sync_bn == "on") return false;
  return config.data_kind == "idx" &&
         std::any_of(std::begin(kModelInputs), std::end(kModelInputs),
                     [&](const ModelInput& input) { return config.model_name == input.model; });
}

absl::Status ValidateData(const TrainConfig& config, int world_size) {
  if (config.data_kind != "idx") {
    return absl::UnimplementedError(
        absl::StrCat("[data] kind: no check for \"", config.data_kind, "\""));
  }
  std::vector<Split> splits = {Split::kTrain};
  if (config.train_evaluate) splits.push_back(Split::kTest);
  int64_t classes = 0;
  for (Split split : splits) {
    absl::StatusOr<IdxFiles> files = FindIdxFiles(config.data_dir, split);
    if (!files.ok()) return files.status();
    absl::StatusOr<IdxSplit> arrays = ReadIdxSplit(*files);
    if (!arrays.ok()) return arrays.status();
    if (absl::Status status = CheckModelInput(config, *files, *arrays); !status.ok()) return status;
    if (split == Split::kTrain) classes = ClassesFor(config, ClassesOf(*arrays));
    if (absl::Status status = CheckLabels(config, *files, *arrays, classes); !status.ok()) {
      return status;
    }
    if (split == Split::kTest) continue;
    if (absl::Status status =
            CheckSampleCount(config, files->images, arrays->images.shape[0], world_size);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace ddprun
