// Everything that can be known to be wrong before anything is started: options + this machine + the
// run folder → a plan of the run, or one clear error. Nothing on disk is changed here.
//
// Errors that the caller can mend by typing something else are exit code 2, whatever their absl
// code.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/train_config.h"
#include "ddprun/v1/job.pb.h"
#include "launcher/cli/machine.h"
#include "launcher/cli/options.h"
#include "launcher/placement/plan.h"

namespace ddprun::cli {

// What a plan depends on besides the options.
struct Surroundings {
  std::map<std::string, std::string> environment;
  std::string working_dir;    // absolute
  std::string binary_folder;  // where ddprun, ddprun-keeper and ddp-worker are
  std::string command_line;   // as typed, for job.json
  std::string version;
  // DDPRUN_SECRET and DDPRUN_SECRET_FILE, which LookAround takes out of `environment` and of this
  // process's own.
  std::optional<std::string> secret;
  std::optional<std::string> secret_file;
  placement::Machine machine;
  Gpus gpus;  // of `machine`
  uint32_t cores = 1;

  std::string Variable(const std::string& name) const;  // "" when unset
};
std::map<std::string, std::string> EnvironmentOfThisProcess();
Surroundings LookAround(const std::vector<std::string>& command_line);

struct RunPlan {
  v1::JobSpec spec;
  uint32_t world_size = 0;             // 0: each agent says how many workers its node has
  std::string shown_run_dir;           // as a person would type it
  bool point_latest = false;           // the folder is in ./runs
  std::string job_facts_json;          // for job.json, beside the spec
  std::vector<std::string> notes;      // what a person should know, one line each
  std::vector<std::string> variables;  // NAME=VALUE that we add to the environment
  placement::NodePlan places;          // of the workers on this machine, where it runs any
  // Data and model are to be looked at by ddp-worker --check for so many ranks; 0: they have been.
  uint32_t ranks_to_check = 0;
  KeyPlaces key_places;  // of the trainer's configuration, for what is found then
  bool has_checkpoint =
      false;  // of an earlier part of the job; its weights are those to go on with
  // The run was resumed, and has nothing left to do: the line that says so; else "".
  std::string already_done;
};

absl::StatusOr<RunPlan> PlanRun(const Options& options, const Surroundings& here);

// INVALID_ARGUMENT when ddp-worker is not beside ddprun.
absl::Status HaveTrainer(const Surroundings& here);

// What workers get of this process's environment where this node is a member of a job that was
// typed here too: with what ddprun adds to it.
std::map<std::string, std::string> OwnWorkerEnvironment(const Surroundings& here);

// Number of workers on a node: N, its GPUs or its cores.
absl::StatusOr<uint32_t> CountProcesses(const Processes& processes, const Surroundings& here,
                                        const Options& options);

}  // namespace ddprun::cli
