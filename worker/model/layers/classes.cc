#include "worker/model/layers/classes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ddprun {

absl::Status CheckImages(const ModelContext& context) {
  const TrainConfig& config = context.config;
  const SampleSpec& data = context.data;
  if (data.input_type == InputType::kFloat32 && data.input_shape.size() == 3 &&
      data.target_shape.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "[model] name: ", config.model_name,
      " takes images of channels x rows x columns with one class each; [data] kind \"",
      config.data_kind, "\" gives ", data.input_type == InputType::kInt64 ? "tokens" : "samples",
      " of ", absl::StrJoin(data.input_shape, " x "),
      data.target_shape.empty() ? "" : ", with a target for each place"));
}

absl::StatusOr<int64_t> ChooseClasses(const ModelContext& context) {
  const int64_t wanted = context.config.model_classes;
  const int64_t have = context.data.classes;
  if (wanted == 0) return have;
  if (wanted < have) {
    return absl::InvalidArgumentError(absl::StrCat("[model] classes: is ", wanted,
                                                   ", the data have ", have,
                                                   " classes; 0 takes their number"));
  }
  return wanted;
}

}  // namespace ddprun
