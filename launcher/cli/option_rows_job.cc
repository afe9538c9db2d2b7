// What to run, and where its results go.
#include "launcher/cli/option_rows.h"
#include "launcher/cli/supervision_values.h"
#include "launcher/cli/values.h"

namespace ddprun::cli {
namespace {

absl::Status SetDevice(OptionText text, Options* o) {
  if (text != "auto" && text != "cpu" && text != "cuda") {
    return absl::InvalidArgumentError("give auto, cpu or cuda");
  }
  o->device = text;
  return absl::OkStatus();
}

}  // namespace

OptionRowList WhatRows() {
  return {
      {"--nproc,--nproc-per-node", "N|gpu|cpu|auto", kAllCommands | kForPlan, kGroupWhat,
       "Worker processes on each node: a number, one for each GPU, one for each core, or auto "
       "(GPUs, else cores). Default 1",
       [](OptionText v, Options* o) { return StoreOption(ParseProcesses(v), &o->processes); },
       "NPROC_PER_NODE"},
      {"--device", "auto|cuda|cpu", kJobCommands, kGroupWhat,
       "What the workers compute on. Default auto: GPUs where there are any",
       [](OptionText v, Options* o) { return SetDevice(v, o); }},
      {"--gpus", "LIST", kJobCommands, kGroupWhat,
       "The GPUs to use, as indices or UUIDs, for example 0,2. Default: all that are visible",
       [](OptionText v, Options* o) { return StoreOption(ParseGpus(v), &o->gpus); }},
      {"--set", "SECTION.KEY=VALUE", kJobCommands | kForPlan, kGroupWhat,
       "Overrides a key of train.cfg, for example train.lr=0.01; may repeat",
       [](OptionText v, Options* o) {
         o->overrides.push_back(v);
         return absl::OkStatus();
       },
       "", true},
      {"--preload", "auto|none|MODULE,…", kJobCommands, kGroupWhat,
       "Python modules that each node loads once for all its workers and their restarts. Default "
       "auto: those of torch that the script imports",
       [](OptionText v, Options* o) { return StoreOption(ParsePreload(v), &o->preload); }},
      {"--dry-run", "", kJobCommands, kGroupWhat,
       "Shows ranks, placement, configuration and environment; starts nothing",
       [](OptionText, Options* o) {
         o->dry_run = true;
         return absl::OkStatus();
       }},
  };
}

OptionRowList WhereRows() {
  return {
      {"--run-dir", "DIR", kJobCommands | kForDoctor, kGroupWhere,
       "Run folder. Default runs/<job id>; runs/latest points there",
       [](OptionText v, Options* o) { return KeepText(v, &o->run_dir); }},
      {"--job-id", "NAME", kAllCommands, kGroupWhere,
       "Name of the job. Default: date, time and four random digits; for an agent: the job that it "
       "wants to join, default any",
       [](OptionText v, Options* o) { return StoreOption(ParseName(v), &o->job_id); }},
      {"--resume", "", kJobCommands, kGroupWhere,
       "Goes on with the job in the run folder, from its newest checkpoint; alone, with the newest "
       "run",
       [](OptionText, Options* o) {
         o->resume = true;
         return absl::OkStatus();
       }},
      {"--log-ranks", "LIST", kJobCommands, kGroupWhere,
       "Ranks whose output is shown here, for example 0 or 0,4-7, or all. Log files hold all. "
       "Default all",
       [](OptionText v, Options* o) { return StoreOption(ParseRanks(v), &o->log_ranks); }},
      {"--log-max-size", "BYTES", kJobCommands, kGroupWhere,
       "A log file of this size is put aside and a new one begun, for example 100M; 0: never. "
       "Default 0",
       [](OptionText v, Options* o) { return StoreOption(ParseBytes(v), &o->log_bytes_max); }},
      {"--log-files", "N", kJobCommands, kGroupWhere,
       "Log files put aside that are kept for each rank and generation; 0: all. Default 0",
       [](OptionText v, Options* o) {
         return StoreOption(ParseCount(v, 0, kLogFilesMax), &o->log_files);
       }},
      {"--keep-runs", "N", kJobCommands, kGroupWhere,
       "At the start, removes the oldest ended runs beside the new one, so that N ended ones are "
       "kept. Default: all are kept",
       [](OptionText v, Options* o) {
         return StoreOption(ParseCount(v, 1, kRunsKeptMax), &o->keep_runs);
       }},
  };
}

OptionRowList OtherRows() {
  return {
      {"-h,--help", "", kEveryCommand, kGroupOther, "Shows this text", nullptr},
      {"--version", "", kEveryCommand, kGroupOther, "Shows the version", nullptr},
  };
}

}  // namespace ddprun::cli
