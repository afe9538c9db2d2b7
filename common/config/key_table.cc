#include "common/config/key_table.h"

namespace ddprun {
namespace {

using C = TrainConfig;

// Limits that only keep arithmetic safe; nobody trains with more.
constexpr double kBatchMax = 1 << 20;
constexpr double kStepsMax = 1e12;
constexpr double kLoaderThreadsMax = 256;
constexpr double kSeedMax = 4294967295.0;  // the sampler's generator is seeded with 32 bits

std::vector<KeySpec> DataKeys() {
  return {
      {.section = "data",
       .name = "kind",
       .field = &C::data_kind,
       .supported = {"idx"},
       .planned = {"cifar10", "image_folder", "tokens", "synthetic"},
       .aliases = {"type", "format"}},
      {.section = "data",
       .name = "dir",
       .field = &C::data_dir,
       .aliases = {"path", "root", "data_dir", "directory"}},
      {.section = "data",
       .name = "normalize",
       .field = &C::data_normalize,
       .supported = {"auto", "none"}},
      {.section = "data",
       .name = "batch_size",
       .field = &C::data_batch_size,
       .min = 1,
       .max = kBatchMax,
       .aliases = {"batch", "batchsize"}},
      {.section = "data", .name = "shuffle", .field = &C::data_shuffle},
      {.section = "data", .name = "drop_last", .field = &C::data_drop_last},
      {.section = "data",
       .name = "workers",
       .field = &C::data_workers,
       .min = 0,
       .max = kLoaderThreadsMax,
       .resume_may_change = true,
       .aliases = {"num_workers", "loader_threads", "threads"}},
  };
}

std::vector<KeySpec> TrainKeys() {
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
      {.section = "train",
       .name = "weight_decay",
       .field = &C::train_weight_decay,
       .min = 0,
       .max = 1e6,
       .aliases = {"wd"}},
      {.section = "train", .name = "betas", .field = &C::train_betas, .min = 0, .max = 0.9999999},
      {.section = "train",
       .name = "eps",
       .field = &C::train_eps,
       .min = 0,
       .max = 1,
       .aliases = {"epsilon"}},
      {.section = "train",
       .name = "scale_lr",
       .field = &C::train_scale_lr,
       .supported = {"none"},
       .planned = {"linear"}},
      {.section = "train",
       .name = "accumulation_steps",
       .field = &C::train_accumulation_steps,
       .min = 1,
       .max = kBatchMax,
       .aliases = {"gradient_accumulation_steps", "accumulate"}},
      {.section = "train", .name = "seed", .field = &C::train_seed, .min = 0, .max = kSeedMax},
      {.section = "train",
       .name = "evaluate",
       .field = &C::train_evaluate,
       .resume_may_change = true,
       .aliases = {"eval", "test"}},
      {.section = "train",
       .name = "unused_parameters",
       .field = &C::train_unused_parameters,
       .supported = {"error", "ignore"},
       .aliases = {"find_unused_parameters"}},
  };
}

std::vector<KeySpec> LayoutKeys() {
  return {
      {.section = "precision",
       .name = "amp",
       .field = &C::precision_amp,
       .supported = {"off"},
       .planned = {"bf16", "fp16"}},
      {.section = "precision",
       .name = "weights",
       .field = &C::precision_weights,
       .supported = {"fp32"},
       .planned = {"bf16_master"}},
      {.section = "precision",
       .name = "recompute",
       .field = &C::precision_recompute,
       .supported = {"none"},
       .planned = {"blocks"}},
      {.section = "parallel",
       .name = "pipeline_stages",
       .field = &C::parallel_pipeline_stages,
       .min = 1,
       .max = 1024,
       .supported_max = 1,
       .aliases = {"stages"}},
      {.section = "parallel",
       .name = "schedule",
       .field = &C::parallel_schedule,
       .supported = {"1f1b"},
       .planned = {"gpipe", "interleaved", "zb-h1"}},
      {.section = "parallel",
       .name = "micro_batches",
       .field = &C::parallel_micro_batches,
       .min = 1,
       .max = kBatchMax,
       .supported_max = 1,
       .aliases = {"microbatches"}},
      {.section = "parallel",
       .name = "sync_bn",
       .field = &C::parallel_sync_bn,
       .supported = {"auto", "off"},
       .planned = {"on"},
       .aliases = {"sync_batch_norm"}},
      {.section = "parallel",
       .name = "bucket_mb",
       .field = &C::parallel_bucket_mb,
       .min = 0,
       .max = 65536,
       .exclusive_min = true,
       .aliases = {"bucket_cap_mb", "bucket_size"}},
  };
}

std::vector<KeySpec> RunKeys() {
  return {
      {.section = "performance",
       .name = "graph",
       .field = &C::performance_graph,
       .supported = {"auto", "off"},
       .resume_may_change = true},
      {.section = "performance",
       .name = "fused_norm",
       .field = &C::performance_fused_norm,
       .supported = {"auto", "off"},
       .planned = {"on"},
       .resume_may_change = true},
      {.section = "checkpoint",
       .name = "every_steps",
       .field = &C::checkpoint_every_steps,
       .min = 0,
       .max = kStepsMax,
       .resume_may_change = true,
       .aliases = {"interval", "every"}},
      {.section = "checkpoint",
       .name = "keep",
       .field = &C::checkpoint_keep,
       .min = 1,
       .max = 1 << 20,
       .resume_may_change = true,
       .aliases = {"max_to_keep"}},
      {.section = "checkpoint",
       .name = "async",
       .field = &C::checkpoint_async,
       .resume_may_change = true},
      {.section = "log",
       .name = "every_steps",
       .field = &C::log_every_steps,
       .min = 1,
       .max = kStepsMax,
       .resume_may_change = true,
       .aliases = {"interval", "every"}},
  };
}

std::vector<KeySpec> BuildTable() {
  std::vector<KeySpec> keys = {
      {.section = "model",
       .name = "name",
       .field = &C::model_name,
       .supported = {"simple_cnn"},
       .planned = {"resnet18", "resnet50", "bert", "gpt", "torchscript"},
       .aliases = {"model", "type", "arch"}},
  };
  for (auto part : {DataKeys(), TrainKeys(), LayoutKeys(), RunKeys()}) {
    keys.insert(keys.end(), part.begin(), part.end());
  }
  return keys;
}

}  // namespace

const std::vector<KeySpec>& TrainConfigKeys() {
  static const auto& keys = *new std::vector<KeySpec>(BuildTable());
  return keys;
}

const KeySpec* FindKey(absl::string_view section, absl::string_view name) {
  for (const KeySpec& key : TrainConfigKeys()) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

bool IsSection(absl::string_view section) {
  for (const KeySpec& key : TrainConfigKeys()) {
    if (key.section == section) return true;
  }
  return false;
}

}  // namespace ddprun
