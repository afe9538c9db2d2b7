// `ddprun ckpt`: checkpoints on disk. Knows no coordinator: a run may go on meanwhile.
#include <cstdio>

#include "launcher/cli/ckpt_actions.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/errors.h"

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

bool CanBeTypedBetter(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsAlreadyExists(status) ||
         absl::IsFailedPrecondition(status);
}

}  // namespace

int RunCkpt(const Options& options) {
  const absl::Status status = Act(options);
  if (std::fflush(stdout) != 0 && status.ok()) {
    PrintError("ckpt: cannot write to standard output");
    return kExitInternal;
  }
  if (status.ok()) return 0;
  PrintError(status);
  return CanBeTypedBetter(status) ? kExitBadUsage : kExitInternal;
}

}  // namespace ddprun::cli
