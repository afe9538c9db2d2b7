#include "worker/data/token_task.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/config/token_sizes.h"
#include "worker/data/dataset.h"

namespace ddprun {
namespace {

// Devlin et al., "BERT", 2018, section 3.1.
constexpr double kBecomesMask = 0.8;
constexpr double kBecomesRandom = 0.1;

void HideToken(const TokenTask& task, int64_t place, SampleRandom* random, int64_t* inputs,
               int64_t* targets) {
  targets[place] = inputs[place];
  const double fate = random->Uniform();
  if (fate < kBecomesMask) {
    inputs[place] = task.mask_token;
  } else if (fate < kBecomesMask + kBecomesRandom) {
    inputs[place] = random->Below(task.vocabulary);
  }
}

absl::Status BadTask(const char* key, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", what));
}

}  // namespace

absl::StatusOr<TokenTask> ReadTokenTask(const TrainConfig& config) {
  const TokenSizes sizes = ResolveTokenSizes(config);
  TokenTask task;
  task.masked =
      config.data_task == "masked" || (config.data_task == "auto" && config.model_name == "bert");
  task.length = sizes.sequence_length;
  task.vocabulary = sizes.vocab_size;
  task.mask_probability = config.data_mask_probability;
  task.mask_token = config.data_mask_token;
  if (task.length == 0) {
    return BadTask("[model] sequence_length",
                   absl::StrCat("missing; it says how many tokens a sample of [data] kind \"",
                                config.data_kind, "\" has for model ", config.model_name));
  }
  if (task.vocabulary == 0 && (task.masked || config.data_kind == "synthetic")) {
    return BadTask(
        "[model] vocab_size",
        absl::StrCat("missing; random tokens are drawn from it for model ", config.model_name));
  }
  if (task.masked && task.mask_token >= task.vocabulary) {
    return BadTask("[data] mask_token",
                   absl::StrCat("is ", task.mask_token, ", but the vocabulary has the tokens 0 to ",
                                task.vocabulary - 1, " ([model] vocab_size)"));
  }
  return task;
}

void MakeTask(const TokenTask& task, const int64_t* window, SampleRandom random, int64_t* inputs,
              int64_t* targets) {
  std::copy_n(window, task.length, inputs);
  if (!task.masked) {
    std::copy_n(window + 1, task.length, targets);
    return;
  }
  std::fill_n(targets, task.length, kIgnoredTarget);
  bool any = false;
  for (int64_t place = 0; place < task.length; ++place) {
    if (random.Uniform() >= task.mask_probability) continue;
    any = true;
    HideToken(task, place, &random, inputs, targets);
  }
  if (!any) HideToken(task, random.Below(task.length), &random, inputs, targets);
}

}  // namespace ddprun
