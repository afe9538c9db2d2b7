// `ddprun plan`: what a train.cfg would take, before anything is started.
#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/config/train_config.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/errors.h"
#include "launcher/cli/plan_text.h"
#include "launcher/cli/worker_question.h"

namespace ddprun::cli {
namespace {

// Made out to be a question for ddp-worker.
absl::StatusOr<WorkerQuestion> QuestionOf(const Options& options, const Surroundings& here) {
  WorkerQuestion question;
  const absl::StatusOr<TrainConfig> config =
      LoadTrainConfig(options.config_path, options.overrides, &question.places);
  if (!config.ok()) return config.status();
  if (absl::Status worker = HaveTrainer(here); !worker.ok()) return worker;
  const absl::StatusOr<uint32_t> processes =
      CountProcesses(options.processes.value_or(Processes{}), here, options);
  if (!processes.ok()) return processes.status();
  question.arguments = {"--plan", absl::StrCat(*processes * options.nodes_max.value_or(1))};
  question.what = absl::StrCat("planning ", options.config_path);
  question.config_json = ToJson(*config);
  // Nobody waits behind it, and large models take their time on a CPU.
  question.seconds_max = std::numeric_limits<int>::max();
  return question;
}

}  // namespace

int ShowPlan(const Options& options, const Surroundings& here) {
  const absl::StatusOr<WorkerQuestion> question = QuestionOf(options, here);
  if (!question.ok()) {
    PrintError(question.status());
    return kExitBadUsage;
  }
  const absl::StatusOr<WorkerAnswer> answer = AskWorker(*question, here);
  if (const int bad = ExitCodeOf(answer, *question); bad != 0) return bad;
  if (options.json) {
    std::fputs(answer->output.c_str(), stdout);
    return 0;
  }
  const absl::StatusOr<std::string> text = PlanText(answer->output, options.config_path);
  if (!text.ok()) {
    PrintError(text.status());
    return kExitInternal;
  }
  std::fputs(text->c_str(), stdout);
  return 0;
}

}  // namespace ddprun::cli
