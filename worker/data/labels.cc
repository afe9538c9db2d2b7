#include "worker/data/labels.h"

#include "absl/strings/str_cat.h"

namespace ddprun {

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

}  // namespace ddprun
