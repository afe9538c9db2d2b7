// Rows of [model] and [data].
#include "common/config/key_rows.h"
#include "common/config/model_names.h"

namespace ddprun {
namespace {

using C = TrainConfig;

// From the names of the files in worker/model/models/ (common/CMakeLists.txt).
std::vector<absl::string_view> ModelNames() {
  return {DDPRUN_MODEL_NAMES};
}

}  // namespace

std::vector<KeySpec> ModelKeys() {
  return {
      {.section = "model",
       .name = "name",
       .field = &C::model_name,
       .supported = ModelNames(),
       .aliases = {"model", "type", "arch"}},
      {.section = "model",
       .name = "classes",
       .field = &C::model_classes,
       .min = 0,
       .max = kModelSizeMax,
       .aliases = {"num_classes"}},
      {.section = "model",
       .name = "stem",
       .field = &C::model_stem,
       .supported = {"auto", "imagenet", "cifar"}},
      {.section = "model",
       .name = "vocab_size",
       .field = &C::model_vocab_size,
       .min = 0,
       .max = kVocabularyMax,
       .aliases = {"vocab", "vocabulary"}},
      {.section = "model",
       .name = "d_model",
       .field = &C::model_d_model,
       .min = 0,
       .max = kModelSizeMax,
       .aliases = {"hidden_size", "n_embd", "width"}},
      {.section = "model",
       .name = "heads",
       .field = &C::model_heads,
       .min = 0,
       .max = kModelSizeMax,
       .aliases = {"num_heads", "n_head", "num_attention_heads"}},
      {.section = "model",
       .name = "layers",
       .field = &C::model_layers,
       .min = 0,
       .max = kModelSizeMax,
       .aliases = {"num_layers", "n_layer", "depth", "num_hidden_layers"}},
      {.section = "model",
       .name = "d_ff",
       .field = &C::model_d_ff,
       .min = 0,
       .max = kModelSizeMax,
       .aliases = {"intermediate_size", "ffn"}},
      {.section = "model",
       .name = "sequence_length",
       .field = &C::model_sequence_length,
       .min = 0,
       .max = kModelSizeMax,
       .aliases = {"seq_len", "block_size", "context", "max_position_embeddings"}},
      {.section = "model", .name = "dropout", .field = &C::model_dropout, .min = 0, .max = 0.999},
      {.section = "model", .name = "file", .field = &C::model_file, .aliases = {"path", "module"}},
      {.section = "model",
       .name = "weights",
       .field = &C::model_weights,
       .aliases = {"init", "pretrained"}},
      {.section = "model", .name = "weights_except", .field = &C::model_weights_except},
  };
}

std::vector<KeySpec> DataKeys() {
  return {
      {.section = "data",
       .name = "kind",
       .field = &C::data_kind,
       .supported = {"idx", "cifar10", "image_folder", "tokens", "synthetic"},
       .aliases = {"type", "format"}},
      {.section = "data",
       .name = "dir",
       .field = &C::data_dir,
       .aliases = {"path", "root", "data_dir", "directory"}},
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

std::vector<KeySpec> SampleKeys() {
  return {
      {.section = "data",
       .name = "augment",
       .field = &C::data_augment,
       .supported = {"auto", "none", "standard"},
       .aliases = {"augmentation", "transform"}},
      {.section = "data",
       .name = "normalize",
       .field = &C::data_normalize,
       .supported = {"auto", "none", "imagenet"}},
      {.section = "data",
       .name = "image_size",
       .field = &C::data_image_size,
       .min = 1,
       .max = kImageSizeMax,
       .aliases = {"crop", "crop_size", "size"}},
      {.section = "data",
       .name = "resize",
       .field = &C::data_resize,
       .min = 1,
       .max = kImageSizeMax},
      {.section = "data",
       .name = "token_type",
       .field = &C::data_token_type,
       .supported = {"uint16", "uint32"},
       .aliases = {"dtype", "token_dtype"}},
      {.section = "data",
       .name = "task",
       .field = &C::data_task,
       .supported = {"auto", "causal", "masked"},
       .aliases = {"objective"}},
      {.section = "data",
       .name = "mask_probability",
       .field = &C::data_mask_probability,
       .min = 0,
       .max = 1,
       .exclusive_min = true,
       .aliases = {"mlm_probability"}},
      {.section = "data",
       .name = "mask_token",
       .field = &C::data_mask_token,
       .min = 0,
       .max = kVocabularyMax},
      {.section = "data", .name = "samples", .field = &C::data_samples, .min = 1, .max = kStepsMax},
      {.section = "data", .name = "channels", .field = &C::data_channels, .min = 1, .max = 4096},
  };
}

}  // namespace ddprun
