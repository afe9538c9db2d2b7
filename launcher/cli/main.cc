// ddprun: parses the command line and runs the command.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/internal/sysinfo.h"
#include "absl/synchronization/mutex.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/errors.h"
#include "launcher/cli/options.h"
#include "launcher/cli/preflight.h"
#include "launcher/cli/signals.h"

namespace {

// The first thread that waits for an absl::Mutex measures the processor's clock, for 3 ms and with
// a spin lock held, where the kernel does not tell it. gRPC uses such mutexes at once; so it is
// measured meanwhile.
void MeasureClockMeanwhile() {
  std::thread([] { absl::base_internal::NominalCPUFrequency(); }).detach();
}

// Debian's abseil is built with it: each lock is entered in a graph, which costs a coordinator of
// many nodes a tenth of its time.
void LookForNoDeadlocks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace

int main(int argc, char** argv) {
  using ddprun::cli::Command;
  LookForNoDeadlocks();
  const std::vector<std::string> command_line(argv, argv + argc);
  const std::string name = argc > 0 ? command_line[0] : "ddprun";
  const std::vector<std::string> arguments(command_line.begin() + (argc > 0 ? 1 : 0),
                                           command_line.end());
  const auto options =
      ddprun::cli::ParseCommandLine(arguments, name, ddprun::cli::EnvironmentOfThisProcess());
  if (!options.ok()) {
    ddprun::cli::PrintError(options.status());
    return ddprun::cli::kExitBadUsage;
  }
  if (options->command == Command::kHelp) {
    std::fputs(options->help.c_str(), stdout);
    return 0;
  }
  if (options->command == Command::kVersion) {
    std::puts("ddprun " DDPRUN_VERSION);
    return 0;
  }
  if (options->command == Command::kLogs) return ddprun::cli::RunLogs(options->logs);
  if (options->command == Command::kDoctor) return ddprun::cli::RunDoctor(*options);
  if (options->command == Command::kTokens) return ddprun::cli::RunTokens(*options);
  if (options->command == Command::kPlan) {
    return ddprun::cli::ShowPlan(*options, ddprun::cli::LookAround(command_line));
  }
  if (options->command == Command::kCkpt) {
    return ddprun::cli::RunCkpt(*options, ddprun::cli::LookAround(command_line));
  }
  std::vector<int> signals = options->stop_signals.value_or(ddprun::cli::kStopSignals);
  const std::vector<int> forwarded = options->forwarded_signals.value_or(std::vector<int32_t>{});
  signals.insert(signals.end(), forwarded.begin(), forwarded.end());
  ddprun::cli::BlockSignals(signals);
  MeasureClockMeanwhile();
  const ddprun::cli::Surroundings here = ddprun::cli::LookAround(command_line);
  // gRPC's own complaints on standard error would bury ours; after LookAround, so that workers do
  // not inherit it.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // The system's resolver, as in our own look-ups. gRPC's asks a name server for IPv6 addresses of
  // a name that /etc/hosts has for IPv4 alone, and waits where none answers.
  setenv("GRPC_DNS_RESOLVER", "native", /*overwrite=*/0);
  return options->command == Command::kAgent ? ddprun::cli::RunAgent(*options, here)
                                             : ddprun::cli::RunJob(*options, here);
}
