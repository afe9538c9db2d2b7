// What is compared among the ranks, and looked at, so that nothing goes wrong in silence.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/trainer/device_name.h"
#include "worker/trainer/fingerprint.h"
#include "worker/trainer/gather.h"
#include "worker/trainer/trainer.h"

namespace ddprun {
namespace {

// For a checkpoint that was begun before, when the run is about to end.
constexpr double kSettleSeconds = 30;

}  // namespace

// Who computes on what, once, when all are connected.
absl::Status Trainer::CompareDevices() {
  if (session_.communicator == nullptr) return absl::OkStatus();
  absl::StatusOr<std::vector<std::string>> names =
      GatherText(DeviceName(session_.device), session_.communicator.get(), session_.device);
  if (!names.ok()) return names.status();
  const std::string mixed = MixedDevices(*names, hosts_);
  if (session_.rank == 0 && !mixed.empty()) printf("%s\n", mixed.c_str());
  return absl::OkStatus();
}

absl::Status Trainer::CheckGradients() {
  // A loss that is not finite may have gradients that are.
  const bool loss_finite = !non_finite_->watches() || std::isfinite(reducer_->control().loss);
  if (loss_finite && non_finite_->Finite(reducer_->flat_gradients())) return absl::OkStatus();
  return ExplainNonFinite("");
}

// The samples of this update once more: `state_` still stands before it.
absl::Status Trainer::ExplainNonFinite(std::string scaler_verdict) {
  NonFiniteWatch::Update update = {.number = state_.step + 1,
                                   .loss_finite = std::isfinite(reducer_->control().loss),
                                   .rank = session_.rank,
                                   .scaler_verdict = std::move(scaler_verdict)};
  update.samples = sampler_->IndicesFor(session_.rank, state_.epoch, state_.samples_in_epoch);
  update.samples.resize(std::min(update.samples.size(), static_cast<size_t>(samples_)));
  Loader batches(train_data_, config_.data_batch_size, /*threads=*/0);
  batches.Start(state_.epoch, update.samples);
  update.batches = &batches;
  update.data = train_data_.get();
  return non_finite_->Explain(update, session_.communicator.get());
}

// Before a checkpoint, so that none is written of weights that nobody can trust, and every so many
// steps. The same on all ranks.
bool Trainer::WeightsCheckDue(int todo) const {
  const int64_t every = config_.checks_fingerprint_every_steps;
  return (every > 0 && state_.step % every == 0) || (todo & DDPRUN_CHECKPOINT) != 0 ||
         CheckpointDue(state_.step) || (config_.checkpoint_best && EvaluationDue());
}

absl::Status Trainer::CheckWeights() {
  if (checked_step_ == state_.step) return absl::OkStatus();
  checked_step_ = state_.step;
  // First: it knows which rank to blame.
  if (config_.checks_fingerprint_every_steps > 0) {
    const absl::Status status = CheckFingerprints(parameters_, session_.rank, state_.step,
                                                  session_.communicator.get(), session_.device);
    if (!status.ok()) return status;
  }
  return CheckFiniteWeights();
}

// Gradients are looked at in each update; finite ones, too, may be more than the weights can take.
absl::Status Trainer::CheckFiniteWeights() {
  const bool stop = config_.checks_non_finite == "stop";
  if (!stop && told_not_finite_) return absl::OkStatus();
  const std::string bad = FirstNonFinite(parameters_);
  if (bad.empty()) return absl::OkStatus();
  told_not_finite_ = true;
  const int64_t good = std::max(writer_->Settled(kSettleSeconds), resumed_step_);
  const std::string what = absl::StrCat(
      "step ", state_.step, ": on rank ", session_.rank, " weights are not finite, first ", bad,
      "; ",
      good < 0 ? std::string("no checkpoint was committed before")
               : absl::StrCat("the checkpoint of step ", good, " is the last good one"));
  if (stop) {
    return absl::FailedPreconditionError(absl::StrCat(
        what,
        ". No checkpoint of this step was written. The optimizer made them so of gradients "
        "that are finite: a lower train.lr, warm-up or train.clip_norm often helps"));
  }
  if (session_.rank == 0) {
    printf("%s; checks.non_finite = \"ignore\" goes on, and later checkpoints hold them\n",
           what.c_str());
  }
  return absl::OkStatus();
}

// Collective, once for each line of the log.
absl::Status Trainer::CompareSpeed() {
  if (session_.communicator == nullptr || config_.checks_slow_rank_factor == 0)
    return absl::OkStatus();
  const StepTimes& mine = interval_times_;
  absl::StatusOr<std::vector<std::vector<double>>> all = GatherNumbers(
      {mine.data, mine.compute, mine.wait}, session_.communicator.get(), session_.device);
  if (!all.ok()) return all.status();
  if (session_.rank != 0) return absl::OkStatus();
  std::vector<StepTimes> by_rank;
  for (const std::vector<double>& one : *all) by_rank.push_back({one[0], one[1], one[2]});
  for (const std::string& line :
       slow_ranks_.Update(state_.step, by_rank, config_.checks_slow_rank_factor, hosts_)) {
    printf("%s\n", line.c_str());
  }
  return absl::OkStatus();
}

}  // namespace ddprun
