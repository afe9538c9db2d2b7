// The run folder's files of lines, each of one kind: metrics.jsonl holds what training did,
// evaluations.jsonl what the test split said of it. One object a line, appended with one write, by
// rank 0 alone. Without a run folder nothing is written. One thread. A line that cannot be written
// is said once on stderr; training goes on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/trainer/evaluate.h"

namespace ddprun {

inline constexpr char kMetricsFile[] = "metrics.jsonl";
inline constexpr char kEvaluationsFile[] = "evaluations.jsonl";

struct MetricsLine {
  int64_t step = 0;
  int64_t epoch = 0;  // 1-based
  double loss = 0;
  double lr = 0;
  std::optional<double> loss_scale = {};  // with fp16
  std::optional<double> grad_norm = {};   // with clip_norm; before clipping
  double samples_per_s = 0;               // over all ranks, since the line before
  double data_wait_s = 0;                 // of rank 0, since the line before; as the next two
  double compute_s = 0;                   // forward and backward
  double comm_wait_s = 0;  // for the gradients of the other ranks, after the own ones
};

// With `utilization`, where any time was measured.
std::string MetricsText(const MetricsLine& line);

// The share of computing, 0 to 1, in the time that a rank computed or waited for data or for the
// other ranks (MA15); nothing where no time was measured.
std::optional<double> Utilization(double data_wait_s, double compute_s, double comm_wait_s);

// {"step", "epoch", "test_loss", "test_accuracy"}, and the last two with `ema_` before them where
// averaged weights are kept.
struct EvaluationLine {
  int64_t step = 0;
  int64_t epoch = 0;  // 1-based
  Evaluation evaluation;
  std::optional<Evaluation> averaged = {};
};

std::string EvaluationText(const EvaluationLine& line);

class LineFile {
 public:
  // An empty folder: nothing is written.
  LineFile(const std::string& run_dir, const std::string& name);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  void Append(const std::string& line);

 private:
  std::string path_;
  int fd_ = -1;
  bool complained_ = false;
};

}  // namespace ddprun
