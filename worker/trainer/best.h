// Which evaluation was the best so far, and for how many there was no better one: for
// checkpoint.best and train.early_stop. Pure; all of it lies in TrainState, so a resume goes on
// with the same counts, and all ranks decide the same from the same sums (TR45).
#pragma once

#include <cstdint>

#include "common/config/train_config.h"
#include "worker/checkpoint/train_state.h"

namespace ddprun {

enum class BestMetric { kAccuracy, kLoss };

// train.best_metric; `auto`: the accuracy where one class is predicted for a sample, else the loss.
BestMetric ChooseBestMetric(const TrainConfig& config, bool one_class_a_sample);

// The evaluation after `state->step` updates. True when it is the best so far: strictly better than
// all before; a value that is not finite never is.
bool NoteEvaluation(BestMetric metric, double value, TrainState* state);

// The one that counts at a time; step 0: none.
struct BestEvaluation {
  int64_t step = 0;
  double value = 0;
};

// train.early_stop evaluations in a row brought nothing better.
bool StopsEarly(const TrainConfig& config, const TrainState& state);

}  // namespace ddprun
