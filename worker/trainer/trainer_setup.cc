// Making a Trainer: data, model, communicator, and the checkpoint it continues.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/generators.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/model/layers/script_digest.h"
#include "worker/parallel/model_fingerprint.h"
#include "worker/parallel/seeds.h"
#include "worker/trainer/device_name.h"
#include "worker/trainer/gather.h"
#include "worker/trainer/same_data.h"
#include "worker/trainer/trainer.h"

namespace ddprun {
namespace {

// How long a rank waits for the others' model fingerprint: they may still be decompressing data.
constexpr double kAgreeSeconds = 300;
constexpr double kBytesPerMb = 1 << 20;

NamedTensors Pairs(const std::vector<NamedTensor>& tensors) {
  NamedTensors pairs;
  for (const NamedTensor& item : tensors) pairs.emplace_back(item.name, item.tensor);
  return pairs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Session* session) {
  std::unique_ptr<Trainer> trainer(new Trainer(session));
  ddprun_handle* client = session->client;
  ddprun_phase(client, DDPRUN_PHASE_LOADING, "data and model");
  if (absl::Status status = trainer->OpenData(); !status.ok()) return status;
  if (absl::Status status = trainer->BuildModel(); !status.ok()) return status;
  if (const char* dir = ddprun_resume_from(client); dir != nullptr) {
    if (absl::Status status = trainer->Restore(dir); !status.ok()) return status;
  }
  ddprun_phase(client, DDPRUN_PHASE_CONNECTING, "communicator");
  if (absl::Status status = trainer->Connect(); !status.ok()) return status;
  if (trainer->resumed_step_ < 0) trainer->update_->BeginRun();
  auto writer = CheckpointWriter::Create(client, trainer->StateTensors(), session->device,
                                         session->config.checkpoint_async);
  if (!writer.ok()) return writer.status();
  trainer->writer_ = *std::move(writer);
  const std::string run_dir = session->rank == 0 ? ddprun_run_dir(client) : "";
  trainer->metrics_ = std::make_unique<LineFile>(run_dir, kMetricsFile);
  trainer->evaluations_ = std::make_unique<LineFile>(run_dir, kEvaluationsFile);
  if (ddprun_ready(client) != 0) return absl::InternalError(ddprun_error(client));
  return trainer;
}

absl::Status Trainer::OpenData() {
  const auto open = [this](DataSplit split, std::shared_ptr<const Dataset>* data) -> absl::Status {
    auto opened = OpenDataset(config_, split, DataCacheDir(session_));
    if (!opened.ok()) return opened.status();
    *data = *std::move(opened);
    // ddprun has asked already, before it started the ranks.
    if (ddprun_is_launched(session_.client) != 0) return absl::OkStatus();
    return (*data)->Check(kDataCheckSeconds);
  };
  if (absl::Status status = open(DataSplit::kTrain, &train_data_); !status.ok()) return status;
  session_.train_data = train_data_;
  if (config_.train_evaluate) {
    if (absl::Status status = open(DataSplit::kTest, &test_data_); !status.ok()) return status;
  }
  count_targets_ = train_data_->spec().ignores;
  const SamplerOptions options = {.samples = train_data_->size(),
                                  .replicas = session_.world_size,
                                  .shuffle = config_.data_shuffle,
                                  .drop_last = config_.data_drop_last,
                                  .seed = static_cast<uint64_t>(config_.train_seed)};
  if (absl::Status status = DistributedSampler::Validate(options); !status.ok()) return status;
  sampler_.emplace(options);
  if (StepsPerEpoch(config_, train_data_->size(), session_.world_size) < 1) {
    return absl::InvalidArgumentError(absl::StrCat("[data] batch_size: ", train_data_->size(),
                                                   " samples give no whole batch to ",
                                                   session_.world_size, " ranks"));
  }
  loader_ = std::make_unique<StagedLoader>(
      train_data_,
      LoaderOptions{.batch_size = config_.data_batch_size,
                    .threads = static_cast<int>(config_.data_workers)},
      MakeCopyQueue(session_.device));
  return absl::OkStatus();
}

absl::Status Trainer::BuildModel() {
  SeedGenerators(static_cast<uint64_t>(config_.train_seed), session_.device);
  absl::StatusOr<Model> model = CreateModel({config_, train_data_->spec()});
  if (!model.ok()) return model.status();
  model_.emplace(*std::move(model));
  // A resume brings its own weights.
  if (!config_.model_weights.empty() && ddprun_resume_from(session_.client) == nullptr) {
    if (absl::Status status =
            LoadInitialWeights(config_.model_weights, config_.model_weights_except, *model_);
        !status.ok()) {
      return status;
    }
  }
  model_->MoveTo(session_.device);
  model_->Train(true);
  parameters_ = model_->Parameters();
  forward_ = std::make_unique<ForwardPass>(&*model_, config_, session_.device);
  absl::StatusOr<std::unique_ptr<ParameterUpdate>> update =
      ParameterUpdate::Create(config_, parameters_, PlannedLength());
  if (!update.ok()) return update.status();
  update_ = *std::move(update);
  SeedGenerators(
      DeriveSeed(config_.train_seed, SeedPurpose::kRank, {session_.rank, session_.world_size, 0}),
      session_.device);
  state_.world_size = session_.world_size;
  state_.data_samples = train_data_->size();
  state_.config = config_;
  return absl::OkStatus();
}

// As the configuration has it for this number of ranks, whatever was done before a resume, so that
// the learning rate of a step does not depend on where the run was interrupted.
RunLength Trainer::PlannedLength() const {
  const int64_t per_epoch = StepsPerEpoch(config_, train_data_->size(), session_.world_size);
  return {.total_steps =
              config_.train_steps > 0 ? config_.train_steps : config_.train_epochs * per_epoch,
          .steps_per_epoch = per_epoch,
          .world_size = session_.world_size};
}

CheckpointTensors Trainer::StateTensors() const {
  CheckpointTensors tensors{parameters_, update_->State(), update_->AveragedWeights()};
  for (const NamedTensor& buffer : model_->Buffers()) {
    tensors.model.push_back(buffer);
    // The averaged model has the buffers of the trained one; its file loads as a whole model.
    if (update_->averages()) tensors.average.push_back(buffer);
  }
  return tensors;
}

absl::Status Trainer::Restore(const std::string& dir) {
  absl::StatusOr<TrainState> state = ReadTrainState(dir, config_);
  if (!state.ok()) return state.status();
  if (state->step != ddprun_resume_step(session_.client)) {
    return absl::FailedPreconditionError(absl::StrCat(dir, " holds step ", state->step,
                                                      ", the launcher expects ",
                                                      ddprun_resume_step(session_.client)));
  }
  // The place in the order of samples has a meaning for this number of samples alone.
  if (state->data_samples != 0 && state->data_samples != train_data_->size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot continue ", dir, ": the training data now have ", train_data_->size(),
        " samples, they had ", state->data_samples,
        "; bring the data back, or begin a new run with [model] weights from this checkpoint"));
  }
  if (absl::Status status = ReadCheckpointTensors(dir, StateTensors()); !status.ok()) return status;
  const int64_t former_world = state->world_size;
  state_ = *std::move(state);
  state_.config = config_;
  state_.world_size = session_.world_size;
  state_.data_samples = train_data_->size();
  resumed_step_ = state_.step;
  if (former_world == session_.world_size) {
    return ReadRng(dir, session_.rank, session_.world_size, session_.device);
  }
  // Another number of ranks: the order goes on where all ranks together left it.
  state_.step_in_epoch = 0;
  SeedGenerators(DeriveSeed(config_.train_seed, SeedPurpose::kRankResumed,
                            {session_.rank, session_.world_size, state_.samples_seen}),
                 session_.device);
  if (session_.rank == 0) {
    printf(
        "resuming step %lld on %d ranks instead of %lld: training goes on after sample %lld of "
        "epoch %lld; random "
        "numbers are drawn anew, so the result will not be bit-identical\n",
        static_cast<long long>(state_.step), session_.world_size,
        static_cast<long long>(former_world), static_cast<long long>(state_.samples_in_epoch),
        static_cast<long long>(state_.epoch) + 1);
  }
  return absl::OkStatus();
}

// In a communicator of its own, see SyncBatchNorm.
absl::Status Trainer::SynchroniseBatchNorm() {
  absl::StatusOr<bool> use = UseSyncBatchNorm(config_, *model_, session_.world_size);
  if (!use.ok() || !*use) return use.status();
  absl::StatusOr<std::unique_ptr<Communicator>> communicator =
      ConnectRanks(session_, "sync_batch_norm");
  if (!communicator.ok()) return communicator.status();
  sync_batch_norm_ = std::make_unique<SyncBatchNorm>(*std::move(communicator));
  sync_batch_norm_->Attach(BatchNormLayers(*model_));
  if (session_.rank == 0) {
    printf("batch norm takes its statistics from all %d ranks (parallel.sync_bn = %s)\n",
           session_.world_size, config_.parallel_sync_bn.c_str());
  }
  return absl::OkStatus();
}

// Who is where, and that all have the same data and, where it is a file, the same model: before
// weights are compared, whose shapes follow from them.
absl::Status Trainer::AgreeOnSamples() {
  Communicator* communicator = session_.communicator.get();
  absl::StatusOr<std::vector<std::string>> hosts =
      GatherText(HostName(), communicator, session_.device);
  if (!hosts.ok()) return hosts.status();
  hosts_ = *std::move(hosts);
  for (const auto& [data, split] :
       {std::pair(train_data_.get(), "training"), std::pair(test_data_.get(), "test")}) {
    if (data == nullptr) continue;
    absl::Status status =
        AgreeOnData(*data, hosts_, split, config_.data_dir, communicator, session_.device);
    if (!status.ok()) return status;
  }
  if (config_.model_file.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> digest = ScriptModuleDigest(config_.model_file);
  if (!digest.ok()) return digest.status();
  const auto digests = GatherText(absl::StrCat("digest ", *digest), communicator, session_.device);
  if (!digests.ok()) return digests.status();
  return CompareOnRanks(*digests, hosts_, "module",
                        absl::StrCat("Gradients of different functions cannot be added up, so "
                                     "[model] file (",
                                     config_.model_file, ") must be the same on every machine"));
}

void Trainer::CountStateBytes() {
  const CheckpointTensors tensors = StateTensors();
  StateBytes& bytes = session_.state_bytes;
  bytes = {.weights = TensorBytes(tensors.model),
           .optimizer = TensorBytes(tensors.optimizer),
           .average = TensorBytes(update_->AveragedWeights()),
           .loader = Loader::RingBytes(train_data_->spec(),
                                       {.batch_size = config_.data_batch_size,
                                        .threads = static_cast<int>(config_.data_workers)}),
           .blocks = model_->size()};
  if (session_.rank == 0) {
    bytes.checkpoint_copy = bytes.weights + bytes.optimizer + TensorBytes(tensors.average);
  }
  for (const at::Tensor& flat : reducer_->flat_gradients()) {
    bytes.gradients += static_cast<int64_t>(flat.nbytes());
  }
}

// Sums in another order than before are other sums; and the slower way is not taken silently.
void Trainer::NoteAllReducePath() {
  const std::string former = state_.all_reduce;
  state_.all_reduce = session_.communicator ? session_.communicator->AllReducePath() : "";
  if (session_.rank != 0 || !session_.communicator) return;
  const bool local = ddprun_local_world_size(session_.client) == session_.world_size;
  printf("gradients are added up through %s%s\n", state_.all_reduce.c_str(),
         local && state_.all_reduce == "TCP"
             ? ", which is slower than shared memory: not every rank can open the memory of every "
               "other one (other users, or containers)"
             : "");
  if (!former.empty() && former != state_.all_reduce) {
    printf(
        "resuming step %lld, up to which they were added up through %s: sums are in another order "
        "now, so the result will not be bit-identical\n",
        static_cast<long long>(state_.step), former.c_str());
  }
}

absl::Status Trainer::Connect() {
  const NamedTensors parameters = Pairs(parameters_);
  const NamedTensors buffers = Pairs(model_->Buffers());
  if (session_.world_size > 1) {
    absl::StatusOr<std::unique_ptr<Communicator>> communicator = ConnectRanks(session_, "world");
    if (!communicator.ok()) return communicator.status();
    session_.communicator = *std::move(communicator);
  }
  NoteAllReducePath();
  if (session_.rank == 0 && session_.device.is_cpu() && config_.precision_amp == "fp16") {
    printf("precision.amp = \"fp16\" is many times slower on CPUs than \"bf16\" or \"off\"\n");
  }
  if (session_.communicator) {
    if (absl::Status status = AgreeOnSamples(); !status.ok()) return status;
    if (absl::Status status =
            AgreeOnModel(DescribeModel(DescribeTensors(parameters, buffers)), "model",
                         session_.rank, session_.world_size, session_.exchange, kAgreeSeconds);
        !status.ok()) {
      return status;
    }
    if (absl::Status status =
            BroadcastParametersAndBuffers(parameters, buffers, session_.communicator.get());
        !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = SynchroniseBatchNorm(); !status.ok()) return status;
  shared_buffers_.emplace(*model_, session_.communicator.get());
  ReducerOptions options;
  options.compress = config_.parallel_compress == "bf16";
  options.bucket_bytes =
      std::max<int64_t>(1, static_cast<int64_t>(config_.parallel_bucket_mb * kBytesPerMb));
  options.first_bucket_bytes = std::min(options.first_bucket_bytes, options.bucket_bytes);
  options.allow_unused = config_.train_unused_parameters == "ignore";
  if (!state_.bucket_layout.empty()) {
    std::vector<BucketParameter> descriptions;
    descriptions.reserve(parameters_.size());
    for (const NamedTensor& item : parameters_) {
      descriptions.push_back({.name = item.name,
                              .numel = item.tensor.numel(),
                              .element_bytes = static_cast<int64_t>(item.tensor.element_size()),
                              .dtype = ScalarTypeName(item.tensor.scalar_type())});
    }
    absl::StatusOr<BucketLayout> layout = BucketLayoutFromJson(state_.bucket_layout, descriptions);
    if (!layout.ok()) return layout.status();
    options.layout = *std::move(layout);
  }
  absl::StatusOr<std::unique_ptr<GradientReducer>> reducer =
      GradientReducer::Create(parameters, session_.communicator.get(), options);
  if (!reducer.ok()) return reducer.status();
  reducer_ = *std::move(reducer);
  CountStateBytes();
  non_finite_ = std::make_unique<NonFiniteWatch>(&*model_, forward_.get(), session_.device,
                                                 config_.checks_non_finite == "stop",
                                                 config_.precision_amp == "fp16");
  return CompareDevices();
}

}  // namespace ddprun
