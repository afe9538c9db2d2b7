// When the test split is evaluated, and what follows from it: the best checkpoint, the early end.
// All ranks decide the same, from the same sums.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "worker/trainer/best.h"
#include "worker/trainer/exceptions.h"
#include "worker/trainer/trainer.h"

namespace ddprun {

// At the end of an epoch, or every so many steps. The end of the run is FinishRun's.
bool Trainer::EvaluationDue() const {
  if (!config_.train_evaluate || state_.step == 0 || state_.evaluated_step == state_.step)
    return false;
  const int64_t every = config_.train_evaluate_every_steps;
  if (every > 0) return state_.step % every == 0;
  return state_.step_in_epoch == 0 && state_.samples_in_epoch == 0;
}

absl::Status Trainer::EvaluateIfDue() {
  return EvaluationDue() && !Finished() ? EvaluateNow() : absl::OkStatus();
}

absl::Status Trainer::EvaluateNow() {
  const bool done = state_.evaluated_step == state_.step && evaluation_.has_value();
  if (!config_.train_evaluate || done) return absl::OkStatus();
  ddprun_phase(session_.client, DDPRUN_PHASE_EVALUATE, nullptr);
  const Clock::time_point begin = Clock::now();
  if (absl::Status status = shared_buffers_->BeforeUse(); !status.ok()) return status;
  if (absl::Status status = EvaluateWeights(); !status.ok()) return SaveAfterFailure(status);
  ReportEvaluation();
  // The time of an evaluation is none of training.
  progress_time_ = Clock::now();
  interval_begin_ += progress_time_ - begin;
  return state_.evaluated_step == state_.step ? absl::OkStatus() : JudgeEvaluation();
}

absl::Status Trainer::EvaluateWeights() {
  absl::StatusOr<Evaluation> evaluation = EvaluateOverRanks();
  if (!evaluation.ok()) return evaluation.status();
  evaluation_ = *evaluation;
  if (std::vector<NamedTensor> averaged = update_->AveragedWeights(); !averaged.empty()) {
    const SwappedWeights swapped(parameters_, std::move(averaged));
    absl::StatusOr<Evaluation> of_averaged = EvaluateOverRanks();
    if (!of_averaged.ok()) return of_averaged.status();
    averaged_evaluation_ = *of_averaged;
  }
  return absl::OkStatus();
}

// What was trained until here is as good as ever: it is saved before the run ends with `error`.
// Where all ranks know of the failure, that is; not where one was lost.
absl::Status Trainer::SaveAfterFailure(const absl::Status& error) {
  if (!evaluation_failed_ || resumed_step_ == state_.step) return error;
  if (absl::Status status = CheckWeights(); !status.ok()) return status;
  if (written_step_ != state_.step) {
    if (absl::Status status = WriteCheckpoint(); !status.ok()) return status;
  }
  const absl::Status saved = writer_->WaitCommitted(state_.step, kCommitSeconds);
  if (session_.rank == 0) {
    fprintf(stderr, "the evaluation after step %lld failed; its checkpoint is %s\n",
            static_cast<long long>(state_.step),
            saved.ok() ? "there" : absl::StrCat("not: ", saved.message()).c_str());
  }
  return error;
}

absl::StatusOr<Evaluation> Trainer::EvaluateOverRanks() {
  const EvaluationOptions options = {.rank = session_.rank,
                                     .world_size = session_.world_size,
                                     .batch_size = config_.data_batch_size,
                                     .threads = static_cast<int>(config_.data_workers),
                                     .device = session_.device};
  absl::StatusOr<Evaluation> mine = absl::UnknownError("not evaluated");
  const absl::Status status = CatchingAll(session_, [&] {
    mine = EvaluatePart(&*model_, forward_.get(), test_data_, options);
    return mine.status();
  });
  if (!status.ok()) mine = status;
  absl::StatusOr<EvaluationSum> sum =
      SumOverRanks(mine, session_.communicator.get(), session_.device);
  if (!sum.ok()) return sum.status();
  evaluation_failed_ = sum->failed > 0;
  if (!evaluation_failed_) return sum->evaluation;
  return mine.ok() ? absl::UnavailableError(
                         "another rank could not evaluate its part; its report "
                         "says why")
                   : mine.status();
}

// The averaged weights are kept to be used, so where there are any, they decide.
absl::Status Trainer::JudgeEvaluation() {
  if (absl::Status status = SettleBest(); !status.ok()) return status;
  const Evaluation& judged = averaged_evaluation_ ? *averaged_evaluation_ : *evaluation_;
  const bool one_class = judged.classifies && judged.targets == judged.samples;
  const BestMetric metric = ChooseBestMetric(config_, one_class);
  const double value = metric == BestMetric::kAccuracy ? judged.accuracy() : judged.loss();
  former_best_ = {state_.best_step, state_.best_value};
  NoteEvaluation(metric, value, &state_);
  state_.evaluated_step = state_.step;
  // The checkpoint of this step is there already, after a stop that did not wait for this.
  if (IsBest() && resumed_step_ == state_.step && session_.rank == 0) {
    const std::string path = JoinPath(ddprun_resume_from(session_.client), kBestMark);
    const absl::Status status = ReplaceFile(PosixFileSystem(), path, BestMark());
    if (!status.ok()) fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  }
  if (StopsEarly(config_, state_) && !AllDone() && session_.rank == 0) {
    printf(
        "step %lld: stopping early: none of the last %lld evaluations was better than that of step "
        "%lld (test %s %.6g)\n",
        static_cast<long long>(state_.step),
        static_cast<long long>(state_.evaluations_without_improvement),
        static_cast<long long>(state_.best_step),
        metric == BestMetric::kAccuracy ? "accuracy" : "loss", state_.best_value);
  }
  return absl::OkStatus();
}

// Before another evaluation is compared with the best one or a checkpoint names it: whether the
// checkpoint of the best one was committed. If it was dropped the one before counts again, so that
// the next better one is kept. The launcher decides for all ranks at once, so they agree.
absl::Status Trainer::SettleBest() {
  const int64_t step = std::exchange(marked_step_, -1);
  if (step < 0) return absl::OkStatus();
  const absl::Status status = writer_->WaitCommitted(step, kCommitSeconds);
  if (status.ok()) return status;
  if (!absl::IsAborted(status)) {
    return absl::InternalError(
        absl::StrCat("it is not known whether the best checkpoint was saved: ", status.message()));
  }
  state_.best_step = former_best_.step;
  state_.best_value = former_best_.value;
  if (session_.rank == 0) {
    printf("the checkpoint of step %lld, the best so far, was not saved: %s\n",
           static_cast<long long>(step),
           former_best_.step == 0
               ? "the next one counts as the first"
               : absl::StrCat("that of step ", former_best_.step, " counts again").c_str());
  }
  return absl::OkStatus();
}

bool Trainer::IsBest() const {
  return config_.checkpoint_best && state_.best_step > 0 && state_.best_step == state_.step;
}

std::string Trainer::BestMark() const {
  const nlohmann::ordered_json mark = {{"step", state_.best_step}, {"value", state_.best_value}};
  return mark.dump() + "\n";
}

}  // namespace ddprun
