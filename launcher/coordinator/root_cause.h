// Which rank's failure ended a generation, and which ranks only died of it.
//
// Rule (DESIGN section 3): the earliest evidence wins, where evidence is a worker's own report of
// an error that is not a communication error (libddprun's, or PyTorch's @record), or its end (exit
// code other than 0, or a signal) unless it shows a communication error or was ended by our own
// stop. Times are the nodes' clocks corrected by their offsets. Where every worker that ended by
// itself only lost its peers, one that failed in its own way while it was being stopped is named:
// it was dying already when its peers noticed. Where the evidence only quotes a checkpoint
// that was dropped (a run whose last one is not saved fails), the rank that could not write its
// part is named. Only when no such evidence exists is the earliest communication error named, and
// the text says that the cause is not known. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launcher/coordinator/state.h"

namespace ddprun::coordinator {

struct RootCause {
  int64_t rank = -1;
  std::string reason;  // one line for people
  bool certain = true;
  int64_t ended_by = -1;  // another rank, whose end ended the generation; −1: `rank` itself
};

// `offsets_ns`: coordinator minus node, by node name. `workers_abort`: the workers are our
// trainer's, whose exit codes after an order to stop tell nothing.
RootCause FindRootCause(const Generation& generation,
                        const std::map<std::string, int64_t>& offsets_ns,
                        bool workers_abort = false);

// It shows that it lost a peer, and no error of its own.
bool IsCommunication(const Worker& worker);

// The `cause` of a worker_exited event: finished, failed, secondary or stopped.
std::string ExitCause(const Worker& worker, const v1::WorkerExited& exited);

// Ranks that died of another's death, without `root`.
std::vector<uint32_t> SecondaryRanks(const Generation& generation, int64_t root);

// Ranks whose last words (own report, else last line of the log) are the same, most first; at most
// 16 groups.
std::vector<FailureGroup> GroupLastWords(const Generation& generation);

// "exited with code 7", "was killed by SIGKILL", "was killed by SIGKILL: OOM-killed, limit 200
// MiB".
std::string DescribeExit(const v1::WorkerExited& exited);
std::string SignalName(int signal);

}  // namespace ddprun::coordinator
