// Slurm's variables: which nodes a step has, which of them this is, and what that means for the
// options that were not given. Pure: looks at nothing but its arguments.
//
// Inside `srun ddprun …` the nodes of the step are the nodes of the job, the name of the job and
// of the node and its rank are Slurm's, and the nodes meet through a file in the run folder
// (rendezvous_file.h). What is given by hand wins: --nnodes 1 runs alone on each node,
// --coordinator needs no file. Outside of a step (a batch script, salloc's shell) ddprun runs on
// one node as usual.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddprun::cli {

struct Options;

// Nodes of one allocation; more are an error in a list, not a cluster.
inline constexpr size_t kSlurmNodesMax = 16384;

// An allocation, and a step in it where there is one.
struct SlurmStep {
  std::string job;         // as squeue shows it: 12, or 12_3 for a task of an array
  std::string step;        // a number; "": not inside of a step
  uint32_t restarts = 0;   // how often Slurm has queued the job again
  bool terminal = false;   // srun --pty: a person types here
  uint32_t job_nodes = 1;  // of the allocation
  // Of the step, in the order of their ids; empty outside of one.
  std::vector<std::string> nodes;
  uint32_t node_id = 0;          // this node's place in `nodes`
  uint32_t tasks_on_node = 1;    // the most that the step has on a node
  std::optional<uint32_t> gpus;  // of this node that Slurm gave to the step or job

  // slurm-<job>.<step>, slurm-<job> outside of a step.
  std::string JobName() const;
};

// nullopt where Slurm has not started this process. INVALID_ARGUMENT names the variable and value.
absl::StatusOr<std::optional<SlurmStep>> ReadSlurm(
    const std::map<std::string, std::string>& environment);

// n[001-003,7],x[1-2]y → n001 n002 n003 n7 x1y x2y, as `scontrol show hostnames` writes it.
absl::StatusOr<std::vector<std::string>> ExpandNodeList(absl::string_view list);

// 2(x3),1 → the largest of these numbers.
absl::StatusOr<uint32_t> MostTasksOnNode(absl::string_view list);

// Whether a job that was stopped by SIGTERM is to be queued again, from the output of `scontrol
// show job`: "" or why not. Slurm sends SIGTERM for scancel as for the time limit.
std::string WhyNoRequeue(absl::string_view shown_job);

// Fills in what was not given (nodes, rank, names, processes, --resume after a requeue), and sets
// `options->slurm` where the nodes of the step are to meet through the run folder. Adds notes.
// INVALID_ARGUMENT for what cannot work, such as several tasks on a node.
absl::Status ApplySlurm(const std::map<std::string, std::string>& environment, Options* options);

}  // namespace ddprun::cli
