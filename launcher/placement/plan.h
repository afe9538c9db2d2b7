// What each worker of a node is given: GPUs, CPUs and threads. One pure function of the machine and
// the job's description; the command line shows its result beforehand, the agent of each node
// carries it out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ddprun/v1/job.pb.h"
#include "launcher/placement/binding.h"
#include "launcher/placement/machine.h"
#include "launcher/placement/visible.h"

namespace ddprun::placement {

struct WorkerPlace {
  std::map<std::string, std::string> variables;  // CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS
  CpuList cpus;                                  // empty: as ddprun itself
  int node = kNodeUnknown;                       // NUMA node of its CPUs, else of its GPU
  std::string gpu;                               // "GPU 2", or a MIG instance's name; "": none
};

struct NodePlan {
  std::vector<WorkerPlace> workers;    // by local rank
  std::vector<VisibleDevice> devices;  // that the workers see together
  Binding binding = Binding::kNone;
  std::string threads;             // one line: which OMP_NUM_THREADS and why; "" when none is set
  std::vector<std::string> notes;  // what a person should know, one line each
};

// INVALID_ARGUMENT or FAILED_PRECONDITION, naming the option: a GPU that is not there, more workers
// than GPUs where each needs its own, a binding that cannot be had.
absl::StatusOr<NodePlan> PlanNode(const Machine& machine, const v1::JobSpec& spec,
                                  uint32_t workers);

// "GPU 0, NUMA node 1, CPUs 8-15": what is known of a place; "" when nothing is.
std::string DescribePlace(const WorkerPlace& place);

}  // namespace ddprun::placement
