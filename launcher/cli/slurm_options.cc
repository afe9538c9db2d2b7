// What Slurm's variables mean for options that were not given.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/cli/options.h"
#include "launcher/cli/slurm.h"

namespace ddprun::cli {
namespace {

// Where the nodes meet was given by hand.
bool PlaceGiven(const Options& o) {
  return !o.coordinator.empty() || o.torchrun.rdzv_endpoint || o.torchrun.master_address || o.hosts;
}

bool RunsAlone(const Options& o) {
  return o.nodes_max.value_or(2) == 1 || o.torchrun.standalone;
}

absl::Status CheckStep(const SlurmStep& step, const Options& o) {
  if (step.tasks_on_node > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("Slurm starts ", step.tasks_on_node,
                     " tasks on a node, and ddprun starts the workers itself: start one ddprun "
                     "per node: srun --ntasks=",
                     step.nodes.size(), " --ntasks-per-node=1 --cpus-per-task=… ddprun --nproc ",
                     step.tasks_on_node, " … (--nnodes 1 if each task is a job of its own)"));
  }
  if (o.nodes_min.value_or(1) > step.nodes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nnodes ", *o.nodes_min, ": this step of Slurm has ", step.nodes.size(),
                     " nodes; leave --nnodes away, or give srun more (-N)"));
  }
  return absl::OkStatus();
}

void ApplyProcesses(const SlurmStep& step, Options* o) {
  if (o->processes) return;
  const bool gpus = step.gpus && o->device.value_or("auto") != "cpu" && !o->gpus;
  if (!gpus) {
    if (step.nodes.size() > 1 && !o->gpus) {
      o->notes.push_back(
          "Slurm gave this node no GPU: 1 worker on each node (--nproc says otherwise)");
    }
    return;
  }
  o->processes = Processes{Processes::Kind::kNumber, *step.gpus};
  o->notes.push_back(absl::StrCat("Slurm gave this node ", *step.gpus, " GPU",
                                  *step.gpus == 1 ? "" : "s", ": ", *step.gpus, " worker",
                                  *step.gpus == 1 ? "" : "s", " here (--nproc says otherwise)"));
}

void ApplyName(const SlurmStep& step, Options* o) {
  // Outside of a step a script may well start several jobs, and a person does so at a terminal.
  const bool own_name = o->requeue || (!step.step.empty() && !step.terminal);
  const bool newest = o->resume && o->config_path.empty() && o->program.empty();
  if (own_name && !newest && !o->job_id && !o->torchrun.rdzv_id) o->job_id = step.JobName();
  if (step.restarts > 0 && own_name && !o->resume && (o->job_id || o->run_dir)) {
    o->resume = true;
    o->notes.push_back(absl::StrCat("Slurm has queued job ", step.job, " again (", step.restarts,
                                    step.restarts == 1 ? " time" : " times",
                                    "): going on with what the run folder holds"));
  }
}

}  // namespace

absl::Status ApplySlurm(const std::map<std::string, std::string>& environment, Options* options) {
  absl::StatusOr<std::optional<SlurmStep>> read = ReadSlurm(environment);
  if (!read.ok()) {
    // Without a use for them, odd variables are nobody's trouble.
    return RunsAlone(*options) ? absl::OkStatus() : read.status();
  }
  if (options->requeue && !*read) {
    return absl::InvalidArgumentError(
        "--requeue: this is no job of Slurm (SLURM_JOB_ID is not set); leave it away");
  }
  if (!*read) return absl::OkStatus();
  const SlurmStep& step = **read;
  options->slurm_job = step.job;
  if (step.step.empty()) {
    ApplyName(step, options);
    if (step.job_nodes > 1 && !PlaceGiven(*options) && !RunsAlone(*options)) {
      options->notes.push_back(absl::StrCat("job ", step.job, " of Slurm has ", step.job_nodes,
                                            " nodes, and this uses one: srun ddprun … uses all"));
    }
    return absl::OkStatus();
  }
  const bool one = step.nodes.size() == 1 && step.tasks_on_node == 1;
  if (RunsAlone(*options) && !one) return absl::OkStatus();
  absl::Status status = CheckStep(step, *options);
  if (!status.ok()) return status;
  ApplyName(step, options);
  ApplyProcesses(step, options);
  if (step.nodes.size() == 1 || options->hosts) return absl::OkStatus();
  if (!options->nodes_max) {
    options->nodes_min = options->nodes_max = static_cast<uint32_t>(step.nodes.size());
  }
  // A node beyond --nnodes is a spare, which has no rank.
  if (!options->node_rank && step.node_id < *options->nodes_max) {
    options->node_rank = static_cast<int32_t>(step.node_id);
  }
  if (options->node.empty()) options->node = step.nodes[step.node_id];
  if (!PlaceGiven(*options)) options->slurm = step;
  return absl::OkStatus();
}

}  // namespace ddprun::cli
