// What others get to see of the training: log lines, metrics.jsonl and evaluations.jsonl, the
// progress display, result.json.
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/best.h"
#include "worker/trainer/trainer.h"

namespace ddprun {
namespace {

// The display is refreshed once a second; the rate is worked out a little more often.
constexpr std::chrono::milliseconds kProgressInterval(500);

}  // namespace

// The lines of each epoch stand at the same places in it. Epochs that are too short for a line of
// their own are counted on. The last update always has one. Before the state moves on to the next
// epoch.
bool Trainer::LogDue() const {
  const int64_t every = config_.log_every_steps;
  const bool last = config_.train_steps > 0
                        ? state_.step >= config_.train_steps
                        : BatchesLeft() == 0 && state_.epoch + 1 >= config_.train_epochs;
  return last || (epoch_steps_ < every ? state_.step : state_.step_in_epoch) % every == 0;
}

absl::Status Trainer::LogStep() {
  const Clock::time_point now = Clock::now();
  const bool due = LogDue();
  if (due) {
    printf("rank %d epoch %" PRId64 " batch %" PRId64 "/%" PRId64 " loss %.4f\n", session_.rank,
           state_.epoch + 1, state_.step_in_epoch, epoch_steps_, rank_loss_.item<double>());
  }
  const double seconds = std::chrono::duration<double>(now - interval_begin_).count();
  if (!due && now - progress_time_ < kProgressInterval) return absl::OkStatus();
  samples_per_second_ = seconds > 0 ? static_cast<double>(interval_samples_) / seconds : 0;
  progress_time_ = now;
  UpdateProgress();
  if (!due) return absl::OkStatus();
  const UpdateOutcome outcome = update_->Outcome();
  metrics_->Append(MetricsText({.step = state_.step,
                                .epoch = state_.epoch + 1,
                                .loss = state_.last_loss,
                                .lr = outcome.lr,
                                .loss_scale = outcome.loss_scale,
                                .grad_norm = outcome.grad_norm,
                                .samples_per_s = samples_per_second_,
                                .data_wait_s = loader_->wait_seconds() - interval_wait_begin_,
                                .compute_s = interval_times_.compute,
                                .comm_wait_s = interval_times_.wait}));
  if (absl::Status status = CompareSpeed(); !status.ok()) return status;
  run_times_ += std::exchange(interval_times_, {});
  interval_begin_ = now;
  interval_samples_ = 0;
  interval_wait_begin_ = loader_->wait_seconds();
  return absl::OkStatus();
}

void Trainer::UpdateProgress() {
  ddprun_progress_info(session_.client, state_.epoch + 1, config_.train_epochs, total_steps_,
                       samples_per_second_);
}

// An epoch's last step belongs to it, although the state stands at the next one's begin.
void Trainer::ReportEvaluation() {
  if (session_.rank != 0) return;
  const bool epoch_over = state_.step_in_epoch == 0 && state_.samples_in_epoch == 0;
  EvaluationLine line = {.step = state_.step,
                         .epoch = epoch_over ? state_.epoch : state_.epoch + 1,
                         .evaluation = *evaluation_};
  printf("step %" PRId64 " %s\n", state_.step, EvaluationSummary(*evaluation_).c_str());
  if (averaged_evaluation_) {
    line.averaged = averaged_evaluation_;
    printf("step %" PRId64 " averaged weights: %s\n", state_.step,
           EvaluationSummary(*averaged_evaluation_).c_str());
  }
  evaluations_->Append(EvaluationText(line));
}

void Trainer::ReportResult(const std::string& digest) {
  const double loop_seconds = std::chrono::duration<double>(Clock::now() - loop_begin_).count();
  const auto result = [&](const char* key, const std::string& value) {
    ddprun_result(session_.client, key, value.c_str());
  };
  result("FINAL_STEP", absl::StrCat(state_.step));
  result("WEIGHTS_DIGEST", digest);
  const auto metric = [&](const std::string& name, double value) {
    result(absl::StrCat("METRIC.", name).c_str(), absl::StrFormat("%.17g", value));
  };
  for (const auto& [prefix, evaluation] :
       {std::pair("", evaluation_), std::pair("ema_", averaged_evaluation_)}) {
    if (!evaluation) continue;
    if (evaluation->classifies)
      metric(absl::StrCat(prefix, "test_accuracy"), evaluation->accuracy());
    metric(absl::StrCat(prefix, "test_loss"), evaluation->loss());
  }
  if (state_.best_step > 0) {
    metric("best_step", static_cast<double>(state_.best_step));
    metric("best_value", state_.best_value);
  }
  // The last update has a line, so this is of all of them.
  if (const auto share = Utilization(run_times_.data, run_times_.compute, run_times_.wait)) {
    metric("utilization", *share);
  }
  if (StopsEarly(config_, state_) && !AllDone()) metric("early_stopped", 1);
  result("METRIC.final_loss", absl::StrFormat("%.17g", state_.last_loss));
  result("METRIC.checkpoint_seconds", absl::StrFormat("%.6f", writer_->seconds()));
  const CheckpointWriter::Cost cost = writer_->cost();
  result("METRIC.checkpoint_bytes", absl::StrCat(cost.bytes));
  result("METRIC.checkpoint_stall_seconds", absl::StrFormat("%.6f", cost.stall_seconds));
  result("METRIC.checkpoint_write_seconds", absl::StrFormat("%.6f", cost.write_seconds));
  result("METRIC.loop_seconds", absl::StrFormat("%.6f", loop_seconds));
  printf("done: step %" PRId64
         ", loss %.4f, weights %s, %.2f s, of which %.4f s in checkpoint calls and %.4f s "
         "waiting for data (%.4f s for the first batch of an epoch)\n",
         state_.step, state_.last_loss, digest.c_str(), loop_seconds, writer_->seconds(),
         loader_->wait_seconds(), loader_->first_wait_seconds());
}

}  // namespace ddprun
