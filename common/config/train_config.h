// TrainConfig: what a train.cfg says, resolved (defaults filled in, overrides applied).
//
// Every key stands once in the table of key_table.cc; parsing, JSON, the comparison for a resume
// and the error texts are all driven by that table. The launcher reads the file, and the worker
// gets the result as JSON. Pure functions but for LoadTrainConfig and ValidateData, which read
// files. Thread-safe. Errors are INVALID_ARGUMENT and name file, line, section and key (or the
// --set option).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddprun {

struct TrainConfig {
  // The meaning and limits of every key are in docs/config.md.
  std::string model_name;             // required
  int64_t model_classes = 0;          // 0: as many as the data have
  std::string model_stem = "auto";    // resnets
  int64_t model_vocab_size = 0;       // bert, gpt; 0, here and below: the model's default
  int64_t model_d_model = 0;          // bert, gpt
  int64_t model_heads = 0;            // bert, gpt
  int64_t model_layers = 0;           // bert, gpt
  int64_t model_d_ff = 0;             // bert, gpt
  int64_t model_sequence_length = 0;  // bert, gpt
  double model_dropout = 0.0;         // bert, gpt
  std::string model_file;             // torchscript; absolute after parsing
  std::string model_weights;          // initial weights; absolute after parsing
  std::string model_weights_except;   // beginnings of names, with commas between them

  std::string data_kind;  // required
  std::string data_dir;   // absolute after parsing; required unless the kind is synthetic
  std::string data_normalize = "auto";
  int64_t data_batch_size = 64;  // per rank
  bool data_shuffle = true;
  bool data_drop_last = true;
  int64_t data_workers = 4;  // loader threads per rank
  std::string data_augment = "auto";
  int64_t data_image_size = 224;           // image_folder, synthetic
  int64_t data_resize = 256;               // image_folder, evaluation
  std::string data_token_type = "uint16";  // tokens
  std::string data_task = "auto";          // tokens, synthetic tokens
  double data_mask_probability = 0.15;     // the masked task
  int64_t data_mask_token = 103;           // the masked task
  int64_t data_samples = 51200;            // synthetic
  int64_t data_channels = 3;               // synthetic

  int64_t train_epochs = 0;  // 0: not given; exactly one of epochs and steps is given
  int64_t train_steps = 0;
  std::string train_optimizer = "adam";
  double train_lr = 0.001;
  double train_momentum = 0.0;  // sgd
  bool train_nesterov = false;  // sgd
  double train_weight_decay = 0.0;
  std::string train_weight_decay_on = "all";
  std::array<double, 2> train_betas = {0.9, 0.999};  // adam, adamw
  double train_eps = 1e-8;                           // adam, adamw
  std::string train_scale_lr = "none";
  std::string train_schedule = "constant";
  int64_t train_warmup_steps = -1;  // −1: chosen by scale_lr
  int64_t train_decay_epochs = 30;  // schedule step
  double train_gamma = 0.1;         // schedule step
  double train_min_lr = 0.0;        // schedules cosine and linear
  double train_clip_norm = 0.0;     // 0: off
  int64_t train_accumulation_steps = 1;
  double train_label_smoothing = 0.0;
  double train_ema_decay = 0.0;  // 0: off
  int64_t train_seed = 1024;
  bool train_evaluate = true;
  int64_t train_evaluate_every_steps = 0;  // 0: after each epoch
  std::string train_best_metric = "auto";
  int64_t train_early_stop = 0;  // evaluations without improvement; 0: off
  bool train_deterministic = false;
  std::string train_unused_parameters = "error";

  std::string precision_amp = "off";
  std::string precision_weights = "fp32";
  std::string precision_recompute = "none";
  double precision_loss_scale = 65536;               // fp16: the initial one
  int64_t precision_loss_scale_growth_steps = 2000;  // fp16

  int64_t parallel_pipeline_stages = 1;
  std::string parallel_schedule = "1f1b";
  int64_t parallel_micro_batches = 1;
  std::string parallel_sync_bn = "auto";
  double parallel_bucket_mb = 25;
  std::string parallel_compress = "none";

  std::string performance_graph = "auto";
  std::string performance_fused_norm = "auto";
  std::string performance_winograd = "auto";

  int64_t checks_fingerprint_every_steps = 1000;  // 0: off
  std::string checks_non_finite = "stop";
  double checks_slow_rank_factor = 1.5;  // 0: off

  int64_t checkpoint_every_steps = 100;  // 0: only at the end
  int64_t checkpoint_keep = 3;
  bool checkpoint_async = true;
  bool checkpoint_best = false;

  int64_t log_every_steps = 100;
  std::string log_nccl_debug = "off";

  bool operator==(const TrainConfig&) const = default;
};

// A config file is read by people; more than this is not one.
inline constexpr size_t kTrainConfigBytesMax = 1 << 20;

// Where keys were given, for errors that are found later than by the functions below.
struct KeyPlaces {
  std::string file_name;                      // for keys that were not given
  std::map<std::string, std::string> by_key;  // "[train] lr": "train.cfg:12: [train] lr"
};

// Reads the file and applies overrides `section.key=value` in order. A relative data.dir is taken
// from the current directory. An override of train.steps replaces train.epochs of the file, and the
// reverse. `places`, where it is not null, is filled on success.
absl::StatusOr<TrainConfig> LoadTrainConfig(const std::string& path,
                                            const std::vector<std::string>& overrides,
                                            KeyPlaces* places = nullptr);

// The same on text; `file_name` is only used in messages.
absl::StatusOr<TrainConfig> ParseTrainConfig(absl::string_view text, const std::string& file_name,
                                             const std::vector<std::string>& overrides,
                                             KeyPlaces* places = nullptr);

// `message` with the place of the key that it begins with: "[model] heads: is 3, …" becomes
// "train.cfg:4: [model] heads: is 3, …". What begins otherwise stays as it is.
std::string WithPlace(const std::string& message, const KeyPlaces& places);

// One line of JSON: an object a section. FromJson is strict (unknown keys, types, ranges).
std::string ToJson(const TrainConfig& config);
absl::StatusOr<TrainConfig> FromJson(absl::string_view json);

// OK when a run under `now` may continue a checkpoint of `previous`: same model, data, optimizer,
// layout. Length of the run, checkpoint and log keys may differ. FAILED_PRECONDITION names the key
// and both values.
absl::Status CompareForResume(const TrainConfig& previous, const TrainConfig& now);

// Reads every data file of the config wholly and checks it, and that `world_size` ranks get at
// least one batch each. About 0.3 s for Fashion-MNIST. Errors name the file and what to do.
absl::Status ValidateData(const TrainConfig& config, int world_size);

// Batches of one epoch on each rank, as the sampler and `drop_last` make them. Pure.
int64_t StepsPerEpoch(const TrainConfig& config, int64_t samples, int world_size);

}  // namespace ddprun
