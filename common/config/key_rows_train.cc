// Rows of [train].
#include "common/config/key_rows.h"

namespace ddprun {
namespace {

using C = TrainConfig;

// How long is trained.
std::vector<KeySpec> LengthKeys() {
  return {
      {.section = "train",
       .name = "epochs",
       .field = &C::train_epochs,
       .min = 1,
       .max = kStepsMax,
       .resume_may_change = true,
       .aliases = {"num_epochs", "max_epochs"}},
      {.section = "train",
       .name = "steps",
       .field = &C::train_steps,
       .min = 1,
       .max = kStepsMax,
       .resume_may_change = true,
       .aliases = {"num_steps", "max_steps", "iterations"}},
  };
}

// What an update does with the gradients.
std::vector<KeySpec> OptimizerKeys() {
  return {
      {.section = "train",
       .name = "optimizer",
       .field = &C::train_optimizer,
       .supported = {"adam", "adamw", "sgd"},
       .aliases = {"optim"}},
      {.section = "train",
       .name = "lr",
       .field = &C::train_lr,
       .min = 0,
       .max = 1e6,
       .exclusive_min = true,
       .aliases = {"learning_rate"}},
      {.section = "train", .name = "momentum", .field = &C::train_momentum, .min = 0, .max = 1},
      {.section = "train", .name = "nesterov", .field = &C::train_nesterov},
      {.section = "train",
       .name = "weight_decay",
       .field = &C::train_weight_decay,
       .min = 0,
       .max = 1e6,
       .aliases = {"wd"}},
      {.section = "train",
       .name = "weight_decay_on",
       .field = &C::train_weight_decay_on,
       .supported = {"all", "matrices"}},
      {.section = "train", .name = "betas", .field = &C::train_betas, .min = 0, .max = 0.9999999},
      {.section = "train",
       .name = "eps",
       .field = &C::train_eps,
       .min = 0,
       .max = 1,
       .aliases = {"epsilon"}},
  };
}

// The learning rate over the run.
std::vector<KeySpec> ScheduleKeys() {
  return {
      {.section = "train",
       .name = "scale_lr",
       .field = &C::train_scale_lr,
       .supported = {"none", "linear"}},
      {.section = "train",
       .name = "schedule",
       .field = &C::train_schedule,
       .supported = {"constant", "step", "cosine", "linear"},
       .aliases = {"lr_schedule", "scheduler", "lr_scheduler"}},
      {.section = "train",
       .name = "warmup_steps",
       .field = &C::train_warmup_steps,
       .min = -1,
       .max = kStepsMax,
       .aliases = {"warmup", "warm_up"}},
      {.section = "train",
       .name = "decay_epochs",
       .field = &C::train_decay_epochs,
       .min = 1,
       .max = kStepsMax,
       .aliases = {"step_size"}},
      {.section = "train", .name = "gamma", .field = &C::train_gamma, .min = 0, .max = 1},
      {.section = "train",
       .name = "min_lr",
       .field = &C::train_min_lr,
       .min = 0,
       .max = 1e6,
       .aliases = {"eta_min"}},
  };
}

// How loss and gradients come about before an update, and what is kept of the weights after it.
std::vector<KeySpec> GradientKeys() {
  return {
      {.section = "train",
       .name = "clip_norm",
       .field = &C::train_clip_norm,
       .min = 0,
       .max = 1e9,
       .aliases = {"max_grad_norm", "grad_clip", "clip", "gradient_clip"}},
      {.section = "train",
       .name = "accumulation_steps",
       .field = &C::train_accumulation_steps,
       .min = 1,
       .max = kBatchMax,
       .aliases = {"gradient_accumulation_steps", "accumulate"}},
      {.section = "train",
       .name = "label_smoothing",
       .field = &C::train_label_smoothing,
       .min = 0,
       .max = 0.999},
      {.section = "train",
       .name = "ema_decay",
       .field = &C::train_ema_decay,
       .min = 0,
       .max = 0.9999999,
       .aliases = {"ema"}},
      {.section = "train",
       .name = "unused_parameters",
       .field = &C::train_unused_parameters,
       .supported = {"error", "ignore"},
       .aliases = {"find_unused_parameters"}},
  };
}

// The test split, and what follows from it.
std::vector<KeySpec> EvaluationKeys() {
  return {
      {.section = "train",
       .name = "evaluate",
       .field = &C::train_evaluate,
       .resume_may_change = true,
       .aliases = {"eval", "test"}},
      {.section = "train",
       .name = "evaluate_every_steps",
       .field = &C::train_evaluate_every_steps,
       .min = 0,
       .max = kStepsMax,
       .resume_may_change = true,
       .aliases = {"eval_every", "eval_interval"}},
      {.section = "train",
       .name = "best_metric",
       .field = &C::train_best_metric,
       .supported = {"auto", "accuracy", "loss"}},
      {.section = "train",
       .name = "early_stop",
       .field = &C::train_early_stop,
       .min = 0,
       .max = kStepsMax,
       .resume_may_change = true,
       .aliases = {"patience", "early_stopping"}},
  };
}

// What makes two runs equal.
std::vector<KeySpec> RandomnessKeys() {
  return {
      {.section = "train", .name = "seed", .field = &C::train_seed, .min = 0, .max = kSeedMax},
      {.section = "train",
       .name = "deterministic",
       .field = &C::train_deterministic,
       .resume_may_change = true},
  };
}

}  // namespace

std::vector<KeySpec> TrainKeys() {
  std::vector<KeySpec> keys;
  for (auto part : {LengthKeys(), OptimizerKeys(), ScheduleKeys(), GradientKeys(), EvaluationKeys(),
                    RandomnessKeys()}) {
    keys.insert(keys.end(), part.begin(), part.end());
  }
  return keys;
}

}  // namespace ddprun
