// What was typed: argv → Options, or one clear error. Pure: looks at nothing but its arguments.
//
// `ddprun [run] [options] (train.cfg | program args… | -- program args…)`, `ddprun coordinator …`,
// `ddprun agent …`, `ddprun logs …`, `ddprun ckpt ls …`, `ddprun tokens …`, `ddprun plan …`. The
// first positional argument that does not end in .cfg is a program in torchrun's way; it and
// everything behind it are the program's own, untouched, as is all behind
// `--`. Options may be written --like-this or --like_this, with `=value` or ` value`.
// Errors are INVALID_ARGUMENT and name the option (or PET_ variable), the value and the fix.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/slurm.h"

namespace ddprun::cli {

enum class Command {
  kRun,
  kCoordinator,
  kAgent,
  kLogs,
  kDoctor,
  kCkpt,
  kTokens,
  kPlan,
  kHelp,
  kVersion
};
enum class CkptAction { kNone, kList, kShow, kVerify, kExport, kConvert, kPrune };

struct Processes {
  enum class Kind { kNumber, kGpus, kCpus, kAuto };
  Kind kind = Kind::kNumber;
  uint32_t number = 1;
};

// What happens to the output of a local rank, in torchrun's numbers (bits): 1 stdout, 2 stderr.
struct StreamChoice {
  int all = 0;  // of ranks that are not in `by_local_rank`
  std::map<uint32_t, int> by_local_rank;
  int Of(uint32_t local_rank) const {
    const auto found = by_local_rank.find(local_rank);
    return found == by_local_rank.end() ? all : found->second;
  }
};

// What only torchrun's own options say. Read by planning alone: most of it ends in other fields of
// the JobSpec.
struct TorchrunOptions {
  bool standalone = false;
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::optional<std::string> rdzv_backend;
  std::optional<std::string> rdzv_endpoint;  // HOST or HOST:PORT
  std::optional<std::string> rdzv_id;
  std::optional<double> join_timeout_seconds;  // of --rdzv-conf
  std::optional<std::string> role;
  std::optional<std::string> log_dir;
  std::optional<StreamChoice> redirects;
  std::optional<StreamChoice> tee;
  std::optional<std::vector<uint32_t>> local_ranks_shown;
  std::optional<std::string> master_address;
  std::optional<uint32_t> master_port;
  std::optional<std::string> local_address;
  std::optional<bool> is_host;  // of --rdzv-conf
  bool virtual_local_rank = false;
};

// `ddprun logs`.
struct LogsOptions {
  std::string run;  // run folder or job id; "": the newest run
  bool follow = false;
  std::vector<uint32_t> ranks;  // empty: all
  std::optional<uint64_t> generation;
  std::optional<double> since_seconds_ago;
  std::optional<double> since_seconds;  // since the epoch
  std::optional<uint64_t> tail;
};

// `ddprun doctor`; --ssh is Options::ssh_command, --run-dir Options::run_dir.
struct DoctorOptions {
  std::vector<std::string> peers;
  bool answer = false;  // the far side of --peers
};

// `ddprun ckpt`; --run-dir is Options::run_dir, --dry-run Options::dry_run.
struct CkptOptions {
  CkptAction action = CkptAction::kNone;
  std::vector<std::string> words;  // steps, paths
  bool ema = false;
  std::string dtype;                                         // as in safetensors; "": unchanged
  std::vector<std::pair<std::string, std::string>> renames;  // from, to
  std::string stripped_prefix;
  uint32_t shards = 1;
  bool torchscript = false;  // export: a module instead of tensors
  std::string module_file;   // of torchscript; "": where the run had it
  std::optional<uint32_t> keep;
};

// `ddprun tokens`; -o and --force are Options::output and Options::force.
struct TokensOptions {
  std::vector<std::string> inputs;
  int token_bytes = 2;
  double test_fraction = 0;  // 0: one file; else a folder with train.bin and test.bin
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
  std::optional<double> time_limit_seconds;

  // Which failures are answered by a restart. Codes are a worker's: 128 + n for signal n.
  std::optional<std::vector<int32_t>> restart_on;
  std::optional<std::vector<int32_t>> no_restart_on;
  std::optional<std::map<int32_t, int32_t>> exit_code_map;
  std::optional<double> restart_window_seconds;
  std::optional<uint32_t> node_strikes;
  std::optional<double> node_cooldown_seconds;

  // Watching and commands.
  std::optional<double> hang_timeout_seconds;
  std::optional<double> init_timeout_seconds;
  std::optional<std::string> health_check;
  std::optional<double> health_check_timeout_seconds;
  std::optional<std::string> on_failure;
  std::optional<std::string> on_finish;
  std::optional<std::vector<int32_t>> forwarded_signals;  // may be empty: none
  std::optional<std::vector<int32_t>> stop_signals;       // nullopt: the usual ones
  std::optional<double> gpu_memory_wait_seconds;
  std::optional<std::string> preload;      // auto | none | modules
  std::optional<std::string> cpu_binding;  // none | node | socket | exclusive | core-complex

  // Log files and run folders.
  std::optional<uint64_t> log_bytes_max;  // 0: no rotation
  std::optional<uint32_t> log_files;      // rotated ones that are kept; 0: all
  std::optional<uint32_t> keep_runs;

  TorchrunOptions torchrun;
  // What a person should know about the options given, one line each.
  std::vector<std::string> notes;

  // Nodes.
  std::string listen;                            // coordinator
  std::string coordinator;                       // HOST:PORT; run and agent
  std::string node;                              // name of this node; "": chosen
  std::optional<std::string> advertise_address;  // numeric or a name, without brackets
  std::optional<std::string> interface;          // network card
  std::optional<bool> wait_for_replacement;      // --on-node-loss
  std::optional<bool> keep_size;
  std::optional<std::string> hosts;  // as typed: a,b:4 or @file
  std::optional<std::string> ssh_command;
  bool tether = false;  // agent that ends with its standard input; its first line is the secret
  bool requeue = false;
  // The nodes of this step of Slurm meet through the run folder.
  std::optional<SlurmStep> slurm;
  std::string slurm_job;        // as `scontrol requeue` takes it; "": not under Slurm
  std::string tls_certificate;  // paths of PEM files
  std::string tls_key;
  std::string tls_ca;

  LogsOptions logs;
  DoctorOptions doctor;
  CkptOptions ckpt;
  TokensOptions tokens;
  std::string output;  // of ckpt and tokens: where they write
  bool force = false;  // of both: what is there is replaced
  bool json = false;   // of doctor, ckpt and plan
};

// `arguments` without the program's own name; `name` is shown in help texts. `environment`: its
// PET_* variables stand for options of torchrun that are not given (PET_NNODES for --nnodes).
absl::StatusOr<Options> ParseCommandLine(
    const std::vector<std::string>& arguments, const std::string& name,
    const std::map<std::string, std::string>& environment = {});

}  // namespace ddprun::cli
