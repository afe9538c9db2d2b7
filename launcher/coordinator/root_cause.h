// Which rank's failure ended a generation, and which ranks only died of it.
//
// Rule (DESIGN section 3): the earliest evidence wins, where evidence is a worker's own report of
// an error that is not a communication error, or its end (exit code other than 0, or a signal)
// unless it reported a communication error or was ended by our own stop. Times are the nodes'
// clocks corrected by their offsets. Only when no such evidence exists is the earliest
// communication error named, and the text says that the cause is not known. Pure.
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
};

// `offsets_ns`: coordinator minus node, by node name.
RootCause FindRootCause(const Generation& generation,
                        const std::map<std::string, int64_t>& offsets_ns);

// The `cause` of a worker_exited event: finished, failed, secondary or stopped.
std::string ExitCause(const Worker& worker, const v1::WorkerExited& exited);

// "exited with code 7", "was killed by SIGKILL".
std::string DescribeExit(const v1::WorkerExited& exited);
std::string SignalName(int signal);

}  // namespace ddprun::coordinator
