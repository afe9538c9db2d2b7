// From a window of tokens to what a model is asked: the next token at each place (causal), or the
// tokens that were hidden (masked, as BERT does it). Pure; any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "worker/data/sample_random.h"

namespace ddprun {

struct TokenTask {
  bool masked = false;
  int64_t length = 0;      // tokens that go in
  int64_t vocabulary = 0;  // ids are 0 … vocabulary−1; 0: the model has no number of its own
  // Masked:
  double mask_probability = 0;
  int64_t mask_token = 0;
  // Tokens that one sample needs, one more where the last one is only a target.
  int64_t window() const { return masked ? length : length + 1; }
};

// What [data] task and the model ask for; `auto` is masked for bert, else causal. INVALID_ARGUMENT
// names the key that is missing or does not fit.
absl::StatusOr<TokenTask> ReadTokenTask(const TrainConfig& config);

// `window`: task.window() tokens. Writes task.length inputs and targets. Masked: each place is
// chosen with mask_probability (one at least); of the chosen, 80 % become mask_token, 10 % a random
// token, 10 % stay; the others have the target kIgnoredTarget.
void MakeTask(const TokenTask& task, const int64_t* window, SampleRandom random, int64_t* inputs,
              int64_t* targets);

}  // namespace ddprun
