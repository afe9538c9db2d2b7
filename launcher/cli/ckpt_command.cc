// `ddprun ckpt`: checkpoints on disk. Knows no coordinator: a run may go on meanwhile.
#include <unistd.h>

#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"
#include "launcher/cli/ckpt_actions.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/errors.h"
#include "launcher/cli/staged_file.h"
#include "launcher/cli/worker_question.h"

namespace ddprun::cli {
namespace {

absl::Status Act(const Options& options) {
  switch (options.ckpt.action) {
    case CkptAction::kNone:
      return absl::OkStatus();
    case CkptAction::kList:
      return CkptList(options);
    case CkptAction::kShow:
      return CkptShow(options);
    case CkptAction::kVerify:
      return CkptVerify(options);
    case CkptAction::kExport:
      return CkptExport(options);
    case CkptAction::kConvert:
      return CkptConvert(options);
    case CkptAction::kPrune:
      return CkptPrune(options);
  }
  return absl::OkStatus();
}

// Calls `use`, which returns whether it succeeded; again where it did not because a running job had
// removed the checkpoint that the words meant, and they mean another one now.
template <typename Use>
void WhileItGoesAway(const Options& options, const Use& use) {
  constexpr int kTriesMax = 5;
  const std::string word = options.ckpt.words.empty() ? "" : options.ckpt.words[0];
  for (int i = 0; i < kTriesMax; ++i) {
    const absl::StatusOr<CkptPlace> place = FindPlace(word, options.run_dir.value_or(""));
    if (use() || !place.ok() || !WentAway(*place)) return;
  }
}

bool UsesOne(CkptAction action) {
  return action == CkptAction::kShow || action == CkptAction::kExport ||
         action == CkptAction::kConvert;
}

bool CanBeTypedBetter(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsAlreadyExists(status) ||
         absl::IsFailedPrecondition(status);
}

int Failed(const absl::Status& status) {
  PrintError(status);
  return CanBeTypedBetter(status) ? kExitBadUsage : kExitInternal;
}

// Modules are LibTorch's, which only ddp-worker has.
absl::StatusOr<WorkerQuestion> TorchScriptErrand(const Options& options, const Surroundings& here) {
  if (absl::Status worker = HaveTrainer(here); !worker.ok()) return worker;
  const absl::StatusOr<std::string> checkpoint = CheckpointToExport(options);
  if (!checkpoint.ok()) return checkpoint.status();
  if (!options.force && access(options.output.c_str(), F_OK) == 0) {
    return ThereAlready(options.output);
  }
  WorkerQuestion errand;
  errand.arguments = {"--export-torchscript", *checkpoint, options.output};
  if (!options.ckpt.module_file.empty()) errand.arguments.push_back(options.ckpt.module_file);
  errand.what = absl::StrCat("writing ", options.output);
  errand.seconds_max = std::numeric_limits<int>::max();  // a large module takes its time
  return errand;
}

int ExportTorchScript(const Options& options, const Surroundings& here) {
  absl::StatusOr<WorkerQuestion> errand;
  absl::StatusOr<WorkerAnswer> answer;
  WhileItGoesAway(options, [&] {
    errand = TorchScriptErrand(options, here);
    if (errand.ok()) answer = AskWorker(*errand, here);
    return errand.ok() && answer.ok() && answer->exit_code == 0;
  });
  if (!errand.ok()) return Failed(errand.status());
  const int code = ExitCodeOf(answer, *errand);
  if (code == 0) std::printf("wrote the module to %s\n", options.output.c_str());
  return code;
}

}  // namespace

int RunCkpt(const Options& options, const Surroundings& here) {
  if (options.ckpt.torchscript) return ExportTorchScript(options, here);
  absl::Status status;
  if (UsesOne(options.ckpt.action)) {
    WhileItGoesAway(options, [&] { return (status = Act(options)).ok(); });
  } else {
    status = Act(options);
  }
  if (std::fflush(stdout) != 0 && status.ok()) {
    PrintError("ckpt: cannot write to standard output");
    return kExitInternal;
  }
  return status.ok() ? 0 : Failed(status);
}

}  // namespace ddprun::cli
