// What both ways to start a worker share: the ends of its pipes and sockets that the child keeps.
#pragma once

#include "launcher/keeper/fd.h"
#include "launcher/keeper/worker_start.h"

namespace ddprun::keeper {

inline constexpr const char* kSocketVariable = "DDPRUN_SOCKET_FD=3";
inline constexpr const char* kPageVariable = "DDPRUN_PAGE_FD=4";

struct ChildEnds {
  Fd null;
  Fd output;
  Fd socket;
  Fd start_pipe;
};

// Opens log, pipes, socket and page of *worker, and the child's ends. False: *failure says why.
bool OpenEnds(const WorkerSpec& spec, const StartContext& context, StartedWorker* worker,
              ChildEnds* ends, StartFailure* failure);
// The process `worker->pid` runs: takes hold of it. False: *failure says why, and it was killed.
bool HoldProcess(StartedWorker* worker, StartFailure* failure);
// In a child before exec: default dispositions, nothing blocked.
void ResetSignals(bool hangup_ignored);
// Left over where ddprun runs under ddprun.
bool IsKeepersVariable(const char* variable);

}  // namespace ddprun::keeper
