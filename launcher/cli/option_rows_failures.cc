// Restarts and stops; watching, the user's own commands, devices.
#include "absl/strings/ascii.h"
#include "launcher/cli/option_rows.h"
#include "launcher/cli/supervision_values.h"
#include "launcher/cli/values.h"

namespace ddprun::cli {
namespace {

absl::Status SetCommand(OptionText text, std::optional<std::string>* field) {
  if (absl::StripAsciiWhitespace(text).empty()) {
    return absl::InvalidArgumentError("give a command, as you would type it in a shell");
  }
  *field = text;
  return absl::OkStatus();
}

absl::Status SetBinding(OptionText text, Options* o) {
  for (const char* way : {"none", "node", "socket", "exclusive", "core-complex"}) {
    if (text == way) return KeepText(text, &o->cpu_binding);
  }
  return absl::InvalidArgumentError("give none, node, socket, exclusive or core-complex");
}

}  // namespace

OptionRowList FailureRows() {
  return {
      {"--max-restarts", "N", kJobCommands, kGroupFailures,
       "Restarts after failures, all in all. Default 3; three failures in a row before the workers "
       "have got going end the job earlier, unless this option is given",
       [](OptionText v, Options* o) {
         return StoreOption(ParseCount(v, 0, kRestartsMax), &o->max_restarts);
       },
       "MAX_RESTARTS"},
      {"--restart-window", "TIME", kJobCommands, kGroupFailures,
       "Only failures within the last so long count against --max-restarts, for example 1h. "
       "Default: all count",
       [](OptionText v, Options* o) {
         return StoreOption(ParsePositiveSeconds(v), &o->restart_window_seconds);
       }},
      {"--restart-on", "CODES", kJobCommands, kGroupFailures,
       "Restarts only after these ends of workers, for example 1-10,85,SIGKILL (a signal n is code "
       "128 + n)",
       [](OptionText v, Options* o) { return StoreOption(ParseCodes(v), &o->restart_on); }},
      {"--no-restart-on", "CODES", kJobCommands, kGroupFailures,
       "Never restarts after these ends of workers",
       [](OptionText v, Options* o) { return StoreOption(ParseCodes(v), &o->no_restart_on); }},
      {"--exit-code-map", "MAP", kJobCommands, kGroupFailures,
       "Exit codes of ddprun for those of workers, for example 85=75,SIGSEGV=3",
       [](OptionText v, Options* o) { return StoreOption(ParseCodeMap(v), &o->exit_code_map); }},
      {"--grace,--shutdown-timeout", "TIME", kJobCommands, kGroupFailures,
       "Time that workers get to save and leave when they are stopped, before they are killed. "
       "Default 30",
       [](OptionText v, Options* o) { return StoreOption(ParseSeconds(v), &o->grace_seconds); },
       "SHUTDOWN_TIMEOUT"},
      {"--time-limit", "TIME", kJobCommands, kGroupFailures,
       "Stops the job after so long, for example 12h; exit code 124. Default: none",
       [](OptionText v, Options* o) {
         return StoreOption(ParsePositiveSeconds(v), &o->time_limit_seconds);
       }},
      {"--min-uptime", "TIME", kJobCommands, kGroupFailures,
       "A program that has run for so long has got going. Default 30",
       [](OptionText v, Options* o) {
         return StoreOption(ParseSeconds(v), &o->min_uptime_seconds);
       }},
      {"--node-strikes", "N", kJobCommands, kGroupFailures,
       "A node on which N generations have failed is left out for a while; 0: never. Default 0 for "
       "one node, 3 for several",
       [](OptionText v, Options* o) {
         return StoreOption(ParseCount(v, 0, kStrikesMax), &o->node_strikes);
       }},
      {"--node-cooldown", "TIME", kJobCommands, kGroupFailures,
       "For so long at first, then twice as long each time. Default 300",
       [](OptionText v, Options* o) {
         return StoreOption(ParsePositiveSeconds(v), &o->node_cooldown_seconds);
       }},
      {"--lease", "TIME", kJobCommands, kGroupFailures,
       "Workers end when their node hears nothing of the coordinator for so long, and it replaces "
       "a silent node 1 s later; 0: never. Default 0 for one node, 3 for several",
       [](OptionText v, Options* o) { return StoreOption(ParseSeconds(v), &o->lease_seconds); }},
  };
}

OptionRowList WatchRows() {
  return {
      {"--hang-timeout", "TIME", kJobCommands, kGroupWatch,
       "Workers that do not move for so long are examined, and the generation starts again; 0: "
       "never. Default 30m for train.cfg, 0 for a program",
       [](OptionText v, Options* o) {
         return StoreOption(ParseSeconds(v), &o->hang_timeout_seconds);
       }},
      {"--init-timeout", "TIME", kJobCommands, kGroupWatch,
       "Workers that use libddprun must be ready within it; 0: never mind. Default 30m for "
       "train.cfg, 0 for a program",
       [](OptionText v, Options* o) {
         return StoreOption(ParseSeconds(v), &o->init_timeout_seconds);
       }},
      {"--health-check", "COMMAND", kJobCommands, kGroupWatch,
       "Shell command that each node runs before each generation; a node where it fails is not "
       "used",
       [](OptionText v, Options* o) { return SetCommand(v, &o->health_check); }},
      {"--health-check-timeout", "TIME", kJobCommands, kGroupWatch,
       "Then it counts as failed. Default 60",
       [](OptionText v, Options* o) {
         return StoreOption(ParsePositiveSeconds(v), &o->health_check_timeout_seconds);
       }},
      {"--on-failure", "COMMAND", kJobCommands, kGroupWatch,
       "Shell command that runs here after each failed generation, with the report as JSON on its "
       "standard input",
       [](OptionText v, Options* o) { return SetCommand(v, &o->on_failure); }},
      {"--on-finish", "COMMAND", kJobCommands, kGroupWatch, "The same, once, at the end of the job",
       [](OptionText v, Options* o) { return SetCommand(v, &o->on_finish); }},
      {"--forward-signals", "LIST|none", kJobCommands, kGroupWatch,
       "Signals that are passed on to the workers while the job goes on. Default USR2",
       [](OptionText v, Options* o) {
         return StoreOption(ParseForwardedSignals(v), &o->forwarded_signals);
       }},
      {"--signals-to-handle", "LIST", kJobCommands, kGroupWatch,
       "Signals that stop the job. Default SIGTERM,SIGINT,SIGHUP,SIGQUIT",
       [](OptionText v, Options* o) { return StoreOption(ParseStopSignals(v), &o->stop_signals); },
       "SIGNALS_TO_HANDLE"},
      {"--gpu-memory-wait", "TIME", kJobCommands, kGroupWatch,
       "Before a generation starts, GPU memory of dead workers is waited for, at most so long; 0: "
       "not. Default 60",
       [](OptionText v, Options* o) {
         return StoreOption(ParseSeconds(v), &o->gpu_memory_wait_seconds);
       }},
      {"--cpu-binding,--numa-binding", "HOW", kJobCommands, kGroupWatch,
       "Which cores a worker gets: none, or near its GPU: node, socket, exclusive, core-complex",
       [](OptionText v, Options* o) { return SetBinding(v, o); }},
  };
}

}  // namespace ddprun::cli
