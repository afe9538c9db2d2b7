// What was typed: argv → Options, or one clear error. Pure: looks at nothing but its arguments.
//
// `ddprun [run] [options] (train.cfg | program args… | -- program args…)`, `ddprun coordinator …`,
// `ddprun agent …`. The first positional argument that does not end in .cfg is a program in
// torchrun's way; it and everything behind it are the program's own, untouched, as is all behind
// `--`. Options may be written --like-this or --like_this, with `=value` or ` value`.
// Errors are INVALID_ARGUMENT and name the option, the value and the fix.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ddprun::cli {

enum class Command { kRun, kCoordinator, kAgent, kHelp, kVersion };

struct Processes {
  enum class Kind { kNumber, kGpus, kCpus, kAuto };
  Kind kind = Kind::kNumber;
  uint32_t number = 1;
};

struct Options {
  Command command = Command::kRun;
  std::string help;  // of kHelp

  // What to run: at most one of both.
  std::string config_path;
  std::vector<std::string> program;
  bool torchrun_way = false;  // without `--`: a .py file runs under Python
  std::vector<std::string> overrides;

  // Values that were not given are nullopt, so that a resumed run keeps those of its first part.
  std::optional<Processes> processes;
  std::optional<uint32_t> nodes_min;
  std::optional<uint32_t> nodes_max;
  std::optional<int32_t> node_rank;
  std::optional<std::string> device;  // auto | cpu | cuda
  std::optional<std::vector<std::string>> gpus;
  std::optional<std::string> job_id;
  std::optional<std::string> run_dir;
  bool resume = false;
  std::optional<uint32_t> max_restarts;
  std::optional<double> grace_seconds;
  std::optional<double> min_uptime_seconds;
  std::optional<double> lease_seconds;
  std::optional<double> join_timeout_seconds;
  std::optional<std::vector<uint32_t>> log_ranks;  // empty: all
  bool dry_run = false;

  std::string listen;       // coordinator
  std::string coordinator;  // agent
  std::string node;         // agent
};

// `arguments` without the program's own name; `name` is shown in help texts.
absl::StatusOr<Options> ParseCommandLine(const std::vector<std::string>& arguments,
                                         const std::string& name);

}  // namespace ddprun::cli
