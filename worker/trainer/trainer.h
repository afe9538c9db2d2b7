// The built-in trainer of one rank: what is trained (model, optimizer, reducer), on what (data set,
// sampler, loader), where it stands (TrainState), and the loop. All of it belongs to one thread.
//
// Files: trainer_setup.cc makes it and restores a checkpoint, trainer.cc is the loop,
// trainer_evaluate.cc the test split and what follows from it, trainer_checks.cc what is compared
// among the ranks and looked at so that nothing goes wrong in silence, trainer_report.cc what
// others get to see. Bit-identity: everything that decides the next update lies in the checkpoint
// (weights, optimizer, generator, place in the sampler's order, bucket layout); nothing depends on
// time or on the number of threads of the loader.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/train_state.h"
#include "worker/data/dataset.h"
#include "worker/data/staged_loader.h"
#include "worker/model/model.h"
#include "worker/parallel/sampler.h"
#include "worker/trainer/best.h"
#include "worker/trainer/evaluate.h"
#include "worker/trainer/forward.h"
#include "worker/trainer/metrics.h"
#include "worker/trainer/non_finite.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/reducer.h"
#include "worker/trainer/session.h"
#include "worker/trainer/shared_buffers.h"
#include "worker/trainer/slow_rank.h"
#include "worker/trainer/sync_batch_norm.h"
#include "worker/trainer/update.h"

namespace ddprun {

class Trainer {
 public:
  // Loads data, makes the model, connects, restores the checkpoint that the launcher chose.
  // `session` outlives the trainer.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Session* session);

  // Trains to the end of the run, or until a stop was asked for. OK in both cases: the process
  // exits with 0.
  absl::Status Run();

 private:
  using Clock = std::chrono::steady_clock;
  // The launcher's own grace is shorter; this only ends a wait for a launcher that never answers.
  static constexpr double kCommitSeconds = 600;
  // What a step edge decided.
  enum class EdgeDecision { kContinue, kStop };

  explicit Trainer(Session* session) : session_(*session), config_(session->config) {}

  // trainer_setup.cc
  absl::Status OpenData();
  absl::Status BuildModel();
  absl::Status Restore(const std::string& dir);
  void NoteAllReducePath();
  absl::Status Connect();
  absl::Status AgreeOnSamples();
  void CountStateBytes();
  absl::Status SynchroniseBatchNorm();
  RunLength PlannedLength() const;
  CheckpointTensors StateTensors() const;

  // trainer.cc
  absl::StatusOr<EdgeDecision> RunEpoch();
  std::vector<int64_t> EpochIndices(int64_t epoch, int64_t samples) const;
  void StartEpoch();
  absl::Status Update(int micro_batches);
  absl::Status Execute(const Action& action);
  absl::Status Load(int micro_batch);
  void AwaitOwnCompute();
  std::vector<int64_t> MicroBatchSizes() const;
  absl::StatusOr<EdgeDecision> StepEdge();
  bool CheckpointDue(int64_t step) const;
  bool AllDone() const;
  bool Finished() const;
  absl::Status FinishRun();
  absl::Status WriteDueCheckpoint(int todo);
  absl::Status WriteCheckpoint();
  absl::Status WriteFinalCheckpoint();
  int64_t TotalSteps() const;
  int64_t BatchesLeft() const { return epoch_batches_ - batches_taken_; }

  // trainer_evaluate.cc
  bool EvaluationDue() const;
  absl::Status EvaluateIfDue();
  absl::Status EvaluateNow();
  absl::Status EvaluateWeights();
  absl::Status SaveAfterFailure(const absl::Status& error);
  absl::StatusOr<Evaluation> EvaluateOverRanks();
  absl::Status JudgeEvaluation();
  absl::Status SettleBest();
  bool IsBest() const;
  std::string BestMark() const;

  // trainer_checks.cc
  absl::Status CompareDevices();
  absl::Status CheckGradients();
  absl::Status ExplainNonFinite(std::string scaler_verdict);
  absl::Status CheckWeights();
  absl::Status CheckFiniteWeights();
  bool WeightsCheckDue(int todo) const;
  absl::Status CompareSpeed();

  // trainer_report.cc
  bool LogDue() const;
  absl::Status LogStep();
  void UpdateProgress();
  void ReportEvaluation();
  void ReportResult(const std::string& digest);

  Session& session_;
  const TrainConfig& config_;

  // What is trained.
  std::optional<Model> model_;
  std::vector<NamedTensor> parameters_;
  std::unique_ptr<ForwardPass> forward_;
  std::unique_ptr<SyncBatchNorm> sync_batch_norm_;  // null where it is off
  std::optional<SharedBuffers> shared_buffers_;
  std::unique_ptr<ParameterUpdate> update_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<CheckpointWriter> writer_;

  // On what.
  std::shared_ptr<const Dataset> train_data_;
  std::shared_ptr<const Dataset> test_data_;  // where it is evaluated
  std::optional<DistributedSampler> sampler_;
  std::unique_ptr<StagedLoader> loader_;

  // Where it stands. `state_` is exact at step edges.
  TrainState state_;
  int64_t resumed_step_ = -1;   // of the checkpoint it started from
  int64_t total_steps_ = 0;     // of the whole run
  int64_t epoch_batches_ = 0;   // micro-batches of what is left of the epoch, since StartEpoch
  int64_t batches_taken_ = 0;   // of those
  int64_t epoch_samples_ = 0;   // of this rank in all of them
  bool count_targets_ = false;  // some may be kIgnoredTarget
  int64_t epoch_steps_ = 0;     // updates of the whole epoch, for the log
  int64_t written_step_ = -1;   // newest checkpoint begun in this process
  int64_t marked_step_ = -1;    // of a checkpoint with the best mark that may yet be dropped
  BestEvaluation former_best_;  // which counts again then
  std::optional<Evaluation> evaluation_;           // the newest of this process
  std::optional<Evaluation> averaged_evaluation_;  // of the averaged weights, where they are kept
  bool evaluation_failed_ = false;                 // on some rank, and all know

  // Checks.
  std::unique_ptr<NonFiniteWatch> non_finite_;
  std::vector<std::string> hosts_;  // by rank
  SlowRankNews slow_ranks_;
  StepTimes interval_times_;      // since the last line of the log
  StepTimes run_times_;           // before it, since this process began
  int64_t checked_step_ = -1;     // newest at which the weights were looked at
  bool told_not_finite_ = false;  // they were not finite, which was said

  // The update being executed.
  std::vector<Batch> batches_;  // by micro-batch; those that are loaded and not used up
  at::Tensor activation_;
  at::Tensor loss_;       // of the micro-batch, weighted
  at::Tensor rank_loss_;  // their sum; the mean over all ranks is the loss of the update
  int64_t samples_ = 0;   // of this rank in this update
  int micro_batches_ = 1;

  // For reports.
  std::unique_ptr<LineFile> metrics_;
  std::unique_ptr<LineFile> evaluations_;
  Clock::time_point loop_begin_;
  Clock::time_point interval_begin_;  // moved on by the time of evaluations
  Clock::time_point progress_time_;
  int64_t interval_samples_ = 0;  // over all ranks
  double interval_wait_begin_ = 0;
  double samples_per_second_ = 0;
};

}  // namespace ddprun
