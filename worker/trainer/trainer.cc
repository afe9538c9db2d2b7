// The training loop, top to bottom: Run → RunEpoch → Update → StepEdge.
#include "worker/trainer/trainer.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/checkpoint/tensor_format.h"
#include "worker/trainer/best.h"

namespace ddprun {

absl::Status Trainer::Run() {
  loop_begin_ = interval_begin_ = progress_time_ = Clock::now();
  total_steps_ = TotalSteps();
  UpdateProgress();
  // A stop does not wait for an evaluation that was due at its step; it is made now.
  if (absl::Status status = EvaluateIfDue(); !status.ok()) return status;
  while (!Finished()) {
    absl::StatusOr<EdgeDecision> decision = RunEpoch();
    if (!decision.ok()) return decision.status();
    if (*decision == EdgeDecision::kStop) return absl::OkStatus();
  }
  return FinishRun();
}

// All updates that the configuration asks for.
bool Trainer::AllDone() const {
  return config_.train_steps > 0 ? state_.step >= config_.train_steps
                                 : state_.epoch >= config_.train_epochs;
}

bool Trainer::Finished() const {
  return AllDone() || StopsEarly(config_, state_);
}

// One epoch, or what is left of it after a resume.
absl::StatusOr<Trainer::EdgeDecision> Trainer::RunEpoch() {
  StartEpoch();
  const int64_t epoch = state_.epoch;
  while (state_.epoch == epoch && !Finished()) {
    const int64_t micro_batches = std::min(config_.train_accumulation_steps, BatchesLeft());
    if (micro_batches == 0) {  // only after a resume on more ranks, when less than a batch was left
      ++state_.epoch;
      state_.step_in_epoch = state_.samples_in_epoch = 0;
      if (absl::Status status = EvaluateIfDue(); !status.ok()) return status;
      break;
    }
    if (absl::Status status = Update(static_cast<int>(micro_batches)); !status.ok()) return status;
    absl::StatusOr<EdgeDecision> decision = StepEdge();
    if (!decision.ok() || *decision == EdgeDecision::kStop) return decision;
  }
  return EdgeDecision::kContinue;
}

// What this rank sees of an epoch of which all ranks have seen `samples` already.
std::vector<int64_t> Trainer::EpochIndices(int64_t epoch, int64_t samples) const {
  std::vector<int64_t> indices = sampler_->IndicesFor(session_.rank, epoch, samples);
  if (config_.data_drop_last) {
    const auto batch = static_cast<size_t>(config_.data_batch_size);
    indices.resize(indices.size() / batch * batch);
  }
  return indices;
}

void Trainer::StartEpoch() {
  std::vector<int64_t> indices = EpochIndices(state_.epoch, state_.samples_in_epoch);
  const int64_t batch = config_.data_batch_size;
  epoch_samples_ = static_cast<int64_t>(indices.size());
  epoch_batches_ = (epoch_samples_ + batch - 1) / batch;
  batches_taken_ = 0;
  const int64_t accumulation = config_.train_accumulation_steps;
  epoch_steps_ = state_.step_in_epoch + (epoch_batches_ + accumulation - 1) / accumulation;
  loader_->Start(state_.epoch, std::move(indices));
  // The next epoch's first batches are prepared while the last ones of this one are trained on.
  const bool last = config_.train_steps > 0
                        ? state_.step - state_.step_in_epoch + epoch_steps_ >= config_.train_steps
                        : state_.epoch + 1 >= config_.train_epochs;
  if (!last) loader_->Follow(state_.epoch + 1, EpochIndices(state_.epoch + 1, 0));
}

// One optimizer update; afterwards `state_` is that of the new step.
absl::Status Trainer::Update(int micro_batches) {
  micro_batches_ = micro_batches;
  batches_.assign(static_cast<size_t>(micro_batches), {});
  rank_loss_ = at::Tensor();
  samples_ = 0;
  if (absl::Status status = shared_buffers_->BeforeUpdate(); !status.ok()) return status;
  non_finite_->BeginUpdate();
  // Every rank tells whether its last checkpoint is still in flight; the mean tells all whether any
  // is.
  const bool busy = CheckpointDue(state_.step + 1) && writer_->InFlight();
  reducer_->SetFlag(busy ? 1.0F : 0.0F);
  if (!count_targets_) forward_->set_loss_weights(LossWeights::OfSizes(MicroBatchSizes()));
  for (const Action& action : PlanDataParallel(model_->size(), micro_batches, count_targets_)) {
    if (action.kind == ActionKind::kReduce) AwaitOwnCompute();
    const auto waited = [this] {
      return sync_batch_norm_ == nullptr ? 0.0 : sync_batch_norm_->wait_seconds();
    };
    const double waited_before = waited();
    const Clock::time_point begin = Clock::now();
    if (absl::Status status = Execute(action); !status.ok()) return status;
    AddTime(action.kind, std::chrono::duration<double>(Clock::now() - begin).count(),
            waited() - waited_before, &interval_times_);
  }
  ++state_.step;
  ++state_.step_in_epoch;
  state_.samples_in_epoch += samples_ * session_.world_size;
  state_.samples_seen += samples_ * session_.world_size;
  state_.last_loss = reducer_->control().loss;
  interval_samples_ += samples_ * session_.world_size;
  return absl::OkStatus();
}

// A GPU computes after the calls that asked for it have returned; without this wait its time would
// be counted as waiting for the other ranks. It costs nothing: the gradients are looked at right
// after, and the buckets that are complete are on their way on a stream of their own.
void Trainer::AwaitOwnCompute() {
  if (session_.device.is_cpu()) return;
  const Clock::time_point begin = Clock::now();
  const c10::impl::VirtualGuardImpl device(session_.device.type());
  device.getStream(session_.device).synchronize();
  AddTime(ActionKind::kBackward, std::chrono::duration<double>(Clock::now() - begin).count(),
          /*waited=*/0, &interval_times_);
}

// How many samples each micro-batch of the update has, on every rank; only the last one of an epoch
// may be shorter.
std::vector<int64_t> Trainer::MicroBatchSizes() const {
  std::vector<int64_t> sizes;
  for (int64_t i = batches_taken_; i < batches_taken_ + micro_batches_; ++i) {
    sizes.push_back(
        std::min(config_.data_batch_size, epoch_samples_ - i * config_.data_batch_size));
  }
  return sizes;
}

absl::Status Trainer::Load(int micro_batch) {
  ddprun_phase(session_.client, DDPRUN_PHASE_DATA, nullptr);
  absl::StatusOr<Batch> next = loader_->Next();
  if (!next.ok()) return next.status();
  Batch& batch = batches_[static_cast<size_t>(micro_batch)];
  batch = *std::move(next);
  // What the loader gives is good until its next batch; here all of the update's are there at once.
  if (count_targets_ && batches_.size() > 1) batch = {batch.inputs.clone(), batch.targets.clone()};
  samples_ += batch.targets.size(0);
  ++batches_taken_;
  ddprun_phase(session_.client, DDPRUN_PHASE_COMPUTE, nullptr);
  return absl::OkStatus();
}

absl::Status Trainer::Execute(const Action& action) {
  Batch& batch = batches_[static_cast<size_t>(action.micro_batch)];
  switch (action.kind) {
    case ActionKind::kLoad:
      return Load(action.micro_batch);
    case ActionKind::kCount: {
      std::vector<at::Tensor> targets;
      targets.reserve(batches_.size());
      for (const Batch& loaded : batches_) targets.push_back(loaded.targets);
      absl::StatusOr<LossWeights> weights =
          LossWeights::OfTargets(targets, session_.communicator.get());
      if (!weights.ok()) return weights.status();
      forward_->set_loss_weights(*std::move(weights));
      return absl::OkStatus();
    }
    case ActionKind::kForward:
      reducer_->Prepare(action.last_micro_batch);
      activation_ = forward_->Forward(batch.inputs, action.first_block, action.last_block);
      return absl::OkStatus();
    case ActionKind::kLoss:
      loss_ = forward_->WeightedLoss(activation_, batch.targets, action.micro_batch);
      activation_ = at::Tensor();
      reducer_->AddLoss(loss_);
      rank_loss_ = rank_loss_.defined() ? rank_loss_ + loss_.detach() : loss_.detach();
      return absl::OkStatus();
    case ActionKind::kBackward:
      batch = {};
      update_->ScaleLoss(std::exchange(loss_, {})).backward();
      if (sync_batch_norm_ != nullptr && !sync_batch_norm_->status().ok()) {
        return sync_batch_norm_->status();
      }
      return action.last_micro_batch ? absl::OkStatus() : reducer_->Finish();
    case ActionKind::kReduce:
      if (absl::Status status = reducer_->Finish(); !status.ok()) return status;
      return CheckGradients();
    case ActionKind::kUpdate: {
      ddprun_phase(session_.client, DDPRUN_PHASE_OPTIMIZER, nullptr);
      const absl::Status status =
          update_->Step(SchedulePosition(config_, PlannedLength(), state_.step, state_.epoch,
                                         state_.samples_in_epoch),
                        *reducer_);
      // It fails where no loss scale helps, on all ranks alike.
      return status.ok() ? status : ExplainNonFinite(std::string(status.message()));
    }
  }
  return absl::InternalError("an action of unknown kind");
}

bool Trainer::CheckpointDue(int64_t step) const {
  return config_.checkpoint_every_steps > 0 && step % config_.checkpoint_every_steps == 0;
}

// Between two updates: the log, the launcher's wishes, checkpoints. All ranks decide the same.
absl::StatusOr<Trainer::EdgeDecision> Trainer::StepEdge() {
  if (absl::Status status = LogStep(); !status.ok()) return status;
  if (BatchesLeft() == 0) {
    ++state_.epoch;
    state_.step_in_epoch = state_.samples_in_epoch = 0;
  }
  const int todo = ddprun_step_done(session_.client, state_.step, state_.last_loss);
  if (todo < 0) return absl::InternalError(ddprun_error(session_.client));
  const bool stop = (todo & DDPRUN_STOP) != 0;
  if (WeightsCheckDue(todo)) {
    if (absl::Status status = CheckWeights(); !status.ok()) return status;
  }
  // Where the best checkpoint is kept, the evaluation decides what becomes of this step's;
  // otherwise the checkpoint is written while the test split is evaluated.
  if (!stop && config_.checkpoint_best) {
    if (absl::Status status = EvaluateIfDue(); !status.ok()) return status;
  }
  if (absl::Status status = WriteDueCheckpoint(todo); !status.ok()) return status;
  if (!stop) {
    if (absl::Status status = EvaluateIfDue(); !status.ok()) return status;
    return EdgeDecision::kContinue;
  }
  // Committed or dropped: the rank stops either way.
  const absl::Status status = writer_->WaitCommitted(state_.step, kCommitSeconds);
  if (!status.ok()) fprintf(stderr, "stopping: %s\n", std::string(status.message()).c_str());
  return EdgeDecision::kStop;
}

absl::Status Trainer::WriteDueCheckpoint(int todo) {
  const bool asked = (todo & DDPRUN_CHECKPOINT) != 0;
  if (asked || (IsBest() && !Finished())) return WriteCheckpoint();
  if (!CheckpointDue(state_.step) || Finished()) return absl::OkStatus();
  if (reducer_->control().flag == 0) return WriteCheckpoint();
  writer_->Skip(state_.step);
  return absl::OkStatus();
}

absl::Status Trainer::WriteCheckpoint() {
  // No checkpoint names one as the best that does not exist.
  if (absl::Status status = SettleBest(); !status.ok()) return status;
  state_.bucket_layout = BucketLayoutToJson(reducer_->layout(), reducer_->parameters());
  writer_->Write(state_, IsBest() ? BestMark() : "");
  written_step_ = state_.step;
  if (IsBest()) marked_step_ = state_.step;
  return absl::OkStatus();
}

absl::Status Trainer::FinishRun() {
  if (absl::Status status = CheckWeights(); !status.ok()) return status;
  if (config_.checkpoint_best) {
    if (absl::Status status = EvaluateNow(); !status.ok()) return status;
  }
  // Written in the background while the test split is evaluated.
  const bool committed_before = resumed_step_ == state_.step;
  if (!committed_before && written_step_ != state_.step) {
    if (absl::Status status = WriteCheckpoint(); !status.ok()) return status;
  }
  if (absl::Status status = EvaluateNow(); !status.ok()) return status;
  if (!committed_before) {
    if (absl::Status status = WriteFinalCheckpoint(); !status.ok()) return status;
  }
  ddprun_phase(session_.client, DDPRUN_PHASE_END, nullptr);
  if (session_.rank != 0) return absl::OkStatus();
  absl::StatusOr<std::string> digest = TensorsDigest(StateTensors().model);
  if (!digest.ok()) return digest.status();
  ReportResult(*digest);
  return absl::OkStatus();
}

// A run whose weights are not saved has not succeeded.
absl::Status Trainer::WriteFinalCheckpoint() {
  absl::Status status = writer_->WaitCommitted(state_.step, kCommitSeconds);
  if (status.ok()) return status;
  const std::string message =
      absl::StrCat("the checkpoint at the end of the run was not saved: ", status.message());
  for (const int error : {ENOSPC, EDQUOT, EROFS}) {
    // A restart would train all steps since the last checkpoint again, and end as this one does.
    if (!absl::StrContains(status.message(), strerror(error))) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(message, "; make room for it, then go on by --resume"));
  }
  return absl::InternalError(message);
}

// Updates of the whole run; 0 when it is not known.
int64_t Trainer::TotalSteps() const {
  if (config_.train_steps > 0) return config_.train_steps;
  const int64_t left = sampler_->NumSamples(state_.samples_in_epoch);
  const int64_t batch = config_.data_batch_size;
  const int64_t batches = config_.data_drop_last ? left / batch : (left + batch - 1) / batch;
  const int64_t accumulation = config_.train_accumulation_steps;
  const int64_t later = std::max<int64_t>(0, config_.train_epochs - state_.epoch - 1);
  if (state_.epoch >= config_.train_epochs) return state_.step;
  return state_.step + (batches + accumulation - 1) / accumulation +
         later * StepsPerEpoch(config_, train_data_->size(), session_.world_size);
}

}  // namespace ddprun
