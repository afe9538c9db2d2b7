// A job of Slurm that was stopped is queued again.
#include <chrono>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/agent/tool.h"
#include "launcher/cli/slurm_cluster.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

constexpr std::chrono::seconds kToolTime{10};
constexpr size_t kOutputBytesMax = 16 * 1024;

agent::ToolRun Scontrol(const std::vector<std::string>& words) {
  std::vector<std::string> arguments = {"scontrol"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  return agent::RunTool(arguments, std::chrono::steady_clock::now() + kToolTime, kOutputBytesMax,
                        -1);
}

}  // namespace

std::string RequeueSlurmJob(const std::string& job) {
  const agent::ToolRun shown = Scontrol({"-o", "show", "job", job});
  if (shown.end == agent::ToolRun::End::kExited && shown.exit_code == 0) {
    const std::string why_not = WhyNoRequeue(shown.output);
    if (!why_not.empty()) {
      return absl::StrCat("--requeue: job ", job, " of Slurm is not queued again: ", why_not);
    }
  }
  const agent::ToolRun run = Scontrol({"requeue", job});
  const std::string failed = absl::StrCat("--requeue: scontrol requeue ", job, " failed: ");
  switch (run.end) {
    case agent::ToolRun::End::kMissing:
      return absl::StrCat(failed, "scontrol is not in PATH");
    case agent::ToolRun::End::kTimedOut:
      return absl::StrCat(failed, "no answer within ", kToolTime.count(), " s");
    case agent::ToolRun::End::kExited:
      break;
  }
  if (run.exit_code == 0) {
    return absl::StrCat("job ", job, " of Slurm is queued again; it will go on from here");
  }
  return absl::StrCat(failed, net::Shown(absl::StripAsciiWhitespace(run.output)),
                      " (only batch jobs can be queued again: sbatch --requeue)");
}

}  // namespace ddprun::cli
