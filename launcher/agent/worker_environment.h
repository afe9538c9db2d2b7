// The complete environment of one worker: the job's, torchrun's variables, Paddle's, and our own
// (DESIGN 4.4; docs/compatibility.md compares it with torchrun's). Pure; the command line shows it
// beforehand (--dry-run).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ddprun/v1/agent.pb.h"
#include "launcher/placement/plan.h"

namespace ddprun::agent {

// PADDLE_TRAINER_ENDPOINTS is left out above so many ranks: one variable holds 128 KiB at most.
inline constexpr uint32_t kPaddleRanksMax = 4096;

// Beside the logs; PyTorch appends the rank.
inline constexpr char kFlightRecorderPrefix[] = "nccl_trace_rank";

struct NodeFacts {
  std::string node;
  std::string worker_path;       // ddp-worker
  uint32_t master_port = 0;      // reserved on the node of rank 0
  bool lease_monotonic = false;  // the lease's clock stands still while the machine sleeps
  std::vector<placement::WorkerPlace> places;  // by local rank; may be empty
  std::string address;                         // of this node; "": MASTER_ADDR's
};

std::map<std::string, std::string> WorkerEnvironment(const v1::StartWorkers& order,
                                                     const NodeFacts& node, uint32_t local_rank);
// TORCHELASTIC_ERROR_FILE: where a worker's @record writes the error that ends it.
std::string ErrorFilePath(const v1::StartWorkers& order, uint32_t rank);

}  // namespace ddprun::agent
