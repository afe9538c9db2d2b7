// Starts one worker as proto/keeper_protocol.md says ("Worker start"): fork, and in the child
// nothing but system calls up to exec.
//
// Threads: the keeper's alone (and it must have no other: the child after fork may allocate only
// because of that). StartWorker does not wait for exec: whether it worked is read from the start
// pipe, so that one slow file system does not delay the other workers.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>

#include "launcher/keeper/fd.h"
#include "launcher/keeper/log_pump.h"
#include "launcher/keeper/spec.h"
#include "launcher/keeper/step_page.h"

namespace ddprun::keeper {

// What a child gets that the keeper found when it was started.
struct StartContext {
  bool hangup_ignored = false;  // SIGHUP stays ignored, as under nohup
  rlimit open_files{};          // before the keeper raised its own
  LogRotation rotation;         // of every worker's log
  int pipe_bytes = 0;           // wished size of each output pipe
};

struct StartedWorker {
  pid_t pid = -1;
  Fd pidfd;
  Fd start_pipe;  // end of file: exec succeeded; else a StartFailure
  Fd socket;      // the keeper's end
  LogPump log;
  StepPage page;
};

enum class StartStage : int {
  kLog,
  kPipe,
  kSocket,
  kPage,
  kFork,
  kPidfd,
  kDirectory,
  kDescriptors,
  kExec,
};

// One record in the start pipe.
struct StartFailure {
  StartStage stage = StartStage::kExec;
  int error = 0;  // errno
};

// True: *worker runs towards exec. False: *failure says why not; nothing is left behind.
bool StartWorker(const WorkerSpec& spec, const StartContext& context, StartedWorker* worker,
                 StartFailure* failure);

// One sentence for people: what was tried on what, why it failed, and what to do.
std::string DescribeStartFailure(const WorkerSpec& spec, const StartFailure& failure);

}  // namespace ddprun::keeper
