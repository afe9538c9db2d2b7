#include "worker/trainer/plan_job.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/data_checks.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/data/loader.h"
#include "worker/parallel/sampler.h"
#include "worker/trainer/non_finite.h"
#include "worker/trainer/sync_batch_norm.h"

namespace ddprun {
namespace {

constexpr int64_t kSamplesTried = 2;

absl::Status CheckLength(const TrainConfig& config, int64_t samples, int world_size) {
  const SamplerOptions options = {.samples = samples,
                                  .replicas = world_size,
                                  .shuffle = config.data_shuffle,
                                  .drop_last = config.data_drop_last,
                                  .seed = static_cast<uint64_t>(config.train_seed)};
  if (absl::Status status = DistributedSampler::Validate(options); !status.ok()) return status;
  return CheckSampleCount(config, "the training data", samples, world_size);
}

// The first samples of a data set as one batch.
absl::StatusOr<Batch> FirstBatch(const std::shared_ptr<const Dataset>& data) {
  const int64_t count = std::min(kSamplesTried, data->size());
  Loader loader(data, count, /*threads=*/0);
  std::vector<int64_t> indices;
  indices.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) indices.push_back(i);
  loader.Start(/*epoch=*/0, std::move(indices));
  absl::StatusOr<Batch> batch = loader.Next();
  if (!batch.ok()) return batch.status();
  // The loader's memory ends with it.
  return Batch{batch->inputs.clone(), batch->targets.clone()};
}

absl::Status TrySplit(PlannedJob* job, const std::shared_ptr<const Dataset>& data,
                      const char* split) {
  absl::StatusOr<Batch> batch = FirstBatch(data);
  if (!batch.ok()) return batch.status();
  const at::AutoGradMode with_gradients(true);
  job->model->Train(false);
  at::Tensor output, loss;
  try {
    output = job->model->Forward(batch->inputs, 0, job->model->size());
    loss = job->model->loss().Compute(output, batch->targets);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return absl::InvalidArgumentError(absl::StrCat(
        "[model] ", job->config.model_name, " cannot take the ", split, " data, samples of shape [",
        absl::StrJoin(data->spec().input_shape, ", "), "]: ", text.substr(0, text.find('\n'))));
  }
  job->model->Train(true);
  if (loss.dim() != 0 && loss.numel() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("[model] ", job->config.model_name,
                                                   ": its loss is no single number but of shape [",
                                                   absl::StrJoin(loss.sizes(), ", "), "]"));
  }
  if (loss.requires_grad()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "[model] ", job->config.model_name,
      ": its loss does not depend on any parameter that is trained, so nothing would be learned; "
      "compute it from the model's output, without detach() or no_grad()"));
}

absl::Status CheckWeights(const PlannedJob& job) {
  if (job.resumed || job.config.checks_non_finite == "ignore") return absl::OkStatus();
  std::vector<NamedTensor> tensors = job.model->Parameters();
  for (NamedTensor& buffer : job.model->Buffers()) tensors.push_back(std::move(buffer));
  const std::string name = FirstNonFinite(tensors);
  if (name.empty()) return absl::OkStatus();
  // The initial weights of our own models are finite.
  const std::string source = job.config.model_weights.empty()
                                 ? absl::StrCat("file: ", job.config.model_file)
                                 : absl::StrCat("weights: ", job.config.model_weights);
  return absl::InvalidArgumentError(
      absl::StrCat("[model] ", source, ": not all of its numbers are finite: ", name,
                   "; use other weights, or set checks.non_finite = \"ignore\""));
}

}  // namespace

absl::StatusOr<PlannedJob> PlanJob(const TrainConfig& config, int world_size, bool resumed,
                                   std::shared_ptr<const Dataset> train_data) {
  PlannedJob job;
  job.config = config;
  job.resumed = resumed;
  job.train_data = std::move(train_data);
  if (job.train_data == nullptr) {
    absl::StatusOr<std::shared_ptr<const Dataset>> data =
        OpenDataset(config, DataSplit::kTrain, /*cache_dir=*/"");
    if (!data.ok()) return data.status();
    job.train_data = *std::move(data);
  }
  const int64_t samples = job.train_data->size();
  if (absl::Status status = CheckLength(config, samples, world_size); !status.ok()) return status;
  const int64_t per_epoch = StepsPerEpoch(config, samples, world_size);
  job.length = {
      .total_steps = config.train_steps > 0 ? config.train_steps : config.train_epochs * per_epoch,
      .steps_per_epoch = per_epoch,
      .world_size = world_size};
  absl::StatusOr<Model> model = CreateModel({config, job.train_data->spec()});
  if (!model.ok()) return model.status();
  job.model.emplace(*std::move(model));
  if (!config.model_weights.empty() && !resumed) {
    absl::Status status =
        LoadInitialWeights(config.model_weights, config.model_weights_except, *job.model);
    if (!status.ok()) return status;
  }
  if (job.model->Parameters().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[model] ", config.model_name, ": has no parameters, so nothing can be trained"));
  }
  if (auto sync = UseSyncBatchNorm(config, *job.model, world_size); !sync.ok()) {
    return sync.status();
  }
  std::vector<NamedTensor> shapes = job.model->Parameters();
  for (NamedTensor& item : shapes) item.tensor = at::empty_like(item.tensor, at::kMeta);
  absl::StatusOr<std::unique_ptr<ParameterUpdate>> update =
      ParameterUpdate::Create(config, std::move(shapes), job.length);
  if (!update.ok()) return update.status();
  job.update = *std::move(update);
  return job;
}

absl::Status TryModel(PlannedJob* job) {
  absl::Status status = job->train_data->Check(kDataCheckSeconds);
  if (status.ok()) status = CheckWeights(*job);
  if (!status.ok()) return status;
  if (status = TrySplit(job, job->train_data, "training"); !status.ok()) return status;
  if (!job->config.train_evaluate) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<const Dataset>> test =
      OpenDataset(job->config, DataSplit::kTest, /*cache_dir=*/"");
  if (!test.ok()) return test.status();
  status = (*test)->Check(kDataCheckSeconds);
  if (!status.ok()) return status;
  return TrySplit(job, *test, "test");
}

}  // namespace ddprun
