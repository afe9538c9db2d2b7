// Options that are torchrun's alone. Those with a namesake of ours stand in that one's row. What
// cannot have its effect is an error that says so.
#include "absl/strings/str_cat.h"
#include "launcher/cli/option_rows.h"
#include "launcher/cli/torchrun_values.h"
#include "launcher/cli/values.h"

namespace ddprun::cli {
namespace {

constexpr char kNoFilters[] =
    "ddprun makes no filtered copies; the log files hold every line, so leave it away and search "
    "them: grep PATTERN <run folder>/logs/g*/rank*.log";

absl::Status SetRole(OptionText text, Options* o) {
  constexpr size_t kRoleBytesMax = 255;
  if (text.size() > kRoleBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("give at most ", kRoleBytesMax, " bytes"));
  }
  return KeepText(text, &o->torchrun.role);
}

absl::Status SetRendezvousId(OptionText text, Options* o) {
  // torchrun's word for no name.
  if (text == "none") return absl::OkStatus();
  return StoreOption(ParseName(text), &o->torchrun.rdzv_id);
}

}  // namespace

OptionRowList TorchrunRows() {
  return {
      {"-m,--module", "", kJobCommands, kGroupTorchrun,
       "The program is a Python module: runs python -u -m NAME",
       [](OptionText, Options* o) {
         o->torchrun.module = true;
         return absl::OkStatus();
       },
       "MODULE"},
      {"--no-python", "", kJobCommands, kGroupTorchrun,
       "The program is executed as it stands, also a .py file",
       [](OptionText, Options* o) {
         o->torchrun.no_python = true;
         return absl::OkStatus();
       },
       "NO_PYTHON"},
      {"--run-path", "", kJobCommands, kGroupTorchrun, "The Python file is run by runpy.run_path",
       [](OptionText, Options* o) {
         o->torchrun.run_path = true;
         return absl::OkStatus();
       },
       "RUN_PATH"},
      {"--role", "NAME", kJobCommands, kGroupTorchrun, "ROLE_NAME of the workers. Default default",
       [](OptionText v, Options* o) { return SetRole(v, o); }, "ROLE"},
      {"--virtual-local-rank", "", kJobCommands, kGroupTorchrun,
       "Each worker gets LOCAL_RANK=0 and sees one GPU",
       [](OptionText, Options* o) {
         o->torchrun.virtual_local_rank = true;
         return absl::OkStatus();
       },
       "VIRTUAL_LOCAL_RANK"},
      {"--log-dir", "DIR", kJobCommands, kGroupTorchrun,
       "Folder in which run folders are made, instead of runs",
       [](OptionText v, Options* o) { return KeepText(v, &o->torchrun.log_dir); }, "LOG_DIR"},
      {"-r,--redirects", "0|3|RANK:0|3,…", kForRun, kGroupTorchrun,
       "3: the output is not shown here, of all or some local ranks (log files hold all)",
       [](OptionText v, Options* o) {
         return StoreOption(ParseStreams(v), &o->torchrun.redirects);
       },
       "REDIRECTS"},
      {"-t,--tee", "0-3|RANK:0-3,…", kForRun, kGroupTorchrun,
       "Output goes to log file and here; so it does without",
       [](OptionText v, Options* o) { return StoreOption(ParseStreams(v), &o->torchrun.tee); },
       "TEE"},
      {"--local-ranks-filter", "LIST", kForRun, kGroupTorchrun,
       "Local ranks whose output is shown here; see also --log-ranks",
       [](OptionText v, Options* o) {
         return StoreOption(ParseLocalRanks(v), &o->torchrun.local_ranks_shown);
       },
       "LOCAL_RANKS_FILTER"},
  };
}

// Only torchrun's own defaults can be had, or nothing.
OptionRowList PythonOnlyRows() {
  return {
      {"--duplicate-stdout-filters", "LIST", kJobCommands, kGroupTorchrun,
       "Not available: search the log files",
       [](OptionText, Options*) { return absl::InvalidArgumentError(kNoFilters); },
       "DUPLICATE_STDOUT_FILTERS"},
      {"--duplicate-stderr-filters", "LIST", kJobCommands, kGroupTorchrun,
       "Not available: search the log files",
       [](OptionText, Options*) { return absl::InvalidArgumentError(kNoFilters); },
       "DUPLICATE_STDERR_FILTERS"},
      {"--logs-specs", "NAME", kJobCommands, kGroupTorchrun, "Not available: a plug-in for Python",
       [](OptionText, Options*) {
         return absl::InvalidArgumentError(
             "Python's plug-ins for logs cannot be called from here; leave it away: each worker "
             "has its log file, see --log-dir, --log-ranks and --log-max-size");
       }},
      {"--event-log-handler", "null", kJobCommands, kGroupTorchrun,
       "Only null: events are in events.jsonl",
       [](OptionText v, Options*) { return CheckEventHandler(v); }, "EVENT_LOG_HANDLER"},
      {"--start-method", "spawn", kJobCommands, kGroupTorchrun, "Only spawn: programs are executed",
       [](OptionText v, Options*) { return CheckStartMethod(v); }, "START_METHOD"},
      {"--monitor-interval", "SECONDS", kJobCommands, kGroupTorchrun,
       "Not needed: the end of a worker is seen at once",
       [](OptionText v, Options* o) { return SetMonitorInterval(v, o); }, "MONITOR_INTERVAL"},
  };
}

OptionRowList RendezvousRows() {
  return {
      {"--standalone", "", kForRun, kGroupTorchrun, "One node; --rdzv-* options are left aside",
       [](OptionText, Options* o) {
         o->torchrun.standalone = true;
         return absl::OkStatus();
       },
       "STANDALONE"},
      {"--rdzv-id", "NAME", kJobCommands, kGroupTorchrun, "Name of the job, as --job-id",
       [](OptionText v, Options* o) { return SetRendezvousId(v, o); }, "RDZV_ID"},
      {"--rdzv-backend", "static|c10d", kJobCommands, kGroupTorchrun,
       "Not needed: ddprun brings its own",
       [](OptionText v, Options* o) { return SetRendezvousBackend(v, o); }, "RDZV_BACKEND"},
      {"--rdzv-endpoint", "HOST:PORT", kForRun, kGroupTorchrun,
       "Several nodes: as --coordinator (port 29400 where none is given). One: MASTER_ADDR and "
       "MASTER_PORT of the workers",
       [](OptionText v, Options* o) {
         return StoreOption(ParseEndpoint(v), &o->torchrun.rdzv_endpoint);
       },
       "RDZV_ENDPOINT"},
      {"--rdzv-conf", "KEY=VALUE,…", kJobCommands, kGroupTorchrun,
       "join_timeout is understood, as --join-timeout; is_host says which node hosts",
       [](OptionText v, Options* o) { return SetRendezvousConfiguration(v, o); }, "RDZV_CONF"},
      {"--master-addr", "HOST", kForRun, kGroupTorchrun,
       "Several nodes: as --coordinator, together with --master-port. One: MASTER_ADDR of the "
       "workers",
       [](OptionText v, Options* o) {
         return StoreOption(ParseHost(v), &o->torchrun.master_address);
       },
       "MASTER_ADDR"},
      {"--master-port", "PORT", kJobCommands, kGroupTorchrun,
       "MASTER_PORT of the workers, held for them (default: a free one); see --master-addr",
       [](OptionText v, Options* o) {
         return StoreOption(ParseCount(v, 0, 65535), &o->torchrun.master_port);
       },
       "MASTER_PORT"},
      {"--local-addr", "HOST", kForRun | kForAgent, kGroupTorchrun,
       "Address at which other nodes reach this one, as --advertise-addr",
       [](OptionText v, Options* o) {
         return StoreOption(ParseHost(v), &o->torchrun.local_address);
       },
       "LOCAL_ADDR"},
  };
}

}  // namespace ddprun::cli
