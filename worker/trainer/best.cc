#include "worker/trainer/best.h"

#include <cmath>

namespace ddprun {

BestMetric ChooseBestMetric(const TrainConfig& config, bool one_class_a_sample) {
  if (config.train_best_metric == "accuracy") return BestMetric::kAccuracy;
  if (config.train_best_metric == "loss") return BestMetric::kLoss;
  return one_class_a_sample ? BestMetric::kAccuracy : BestMetric::kLoss;
}

bool NoteEvaluation(BestMetric metric, double value, TrainState* state) {
  const bool better =
      metric == BestMetric::kAccuracy ? value > state->best_value : value < state->best_value;
  if (std::isfinite(value) && (state->best_step == 0 || better)) {
    state->best_value = value;
    state->best_step = state->step;
    state->evaluations_without_improvement = 0;
    return true;
  }
  ++state->evaluations_without_improvement;
  return false;
}

bool StopsEarly(const TrainConfig& config, const TrainState& state) {
  return config.train_early_stop > 0 &&
         state.evaluations_without_improvement >= config.train_early_stop;
}

}  // namespace ddprun
