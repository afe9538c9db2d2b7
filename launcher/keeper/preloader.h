// Preloader: a process that has loaded what the workers need (a Python interpreter with its heavy
// modules), and has forked each of them from itself ahead of time (proto/keeper_protocol.md,
// "Preloaded start").
//
// It is a child of the keeper, and so become the workers, since the keeper is a subreaper: they are
// watched, stopped and reaped like any other. Threads: the keeper's alone. A preloader that fails
// costs nothing but time: the workers are started afresh then.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "launcher/keeper/fd.h"
#include "launcher/keeper/spec.h"
#include "launcher/keeper/worker_ends.h"
#include "launcher/keeper/worker_start.h"

namespace ddprun::keeper {

class Preloader {
 public:
  // Executes the program of `spec`, with its output to the log there. False: errno says why.
  bool Start(const WorkerSpec& spec, const StartContext& context);
  // REQUIRES: socket() is readable. True: it has loaded everything; false: it has ended.
  bool ReadReady() const;
  // Ends it; it is reaped as an orphan.
  void End();

  // One of its processes, whichever takes the packet first, is to become this worker.
  bool Ask(const WorkerSpec& spec, const ChildEnds& ends, const StartedWorker& worker) const;
  // Waits for the process that was asked for, until `deadline_boot_ns`.
  static bool AwaitPid(StartedWorker* worker, int64_t deadline_boot_ns);

  int socket() const { return socket_.get(); }
  // Readable when it has ended. The socket alone does not tell: what it has forked holds it too.
  int exit_fd() const { return pidfd_.get(); }
  bool running() const { return socket_.valid(); }

 private:
  pid_t pid_ = -1;
  Fd pidfd_;
  Fd socket_;
};

}  // namespace ddprun::keeper
