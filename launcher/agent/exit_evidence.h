// ExitEvidence: what a node can find out about the death of a worker of one generation, beyond how
// it ended: its error file, its last lines, the memory limit, its core and the files it left.
//
// Begins before the workers start, so that what is left over from before does not count. Reads a
// few small files at each failure, and nothing at a success. Belongs to the agent's loop.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ddprun/v1/agent.pb.h"
#include "launcher/agent/out_of_memory.h"

namespace ddprun::agent {

inline constexpr size_t kArtifactsMax = 16;

// What the keeper said about an end that WorkerExited has no field for.
struct ExitCircumstances {
  bool core_flag = false;    // the kernel dumped a core
  bool said_failed = false;  // it had told by itself why it ends
  int64_t started_ns = 0;    // CLOCK_REALTIME
};

class ExitEvidence {
 public:
  // `master_port`: that of rank 0, as its environment says.
  void Begin(const v1::StartWorkers& order, uint32_t master_port);
  // Adds to *exited what is known. Returns lines for the console.
  std::vector<std::string> Explain(const ExitCircumstances& circumstances,
                                   v1::WorkerExited* exited);

 private:
  v1::ExitHint FindHint(const v1::WorkerExited& exited) const;
  void FindArtifacts(v1::WorkerExited* exited) const;

  v1::StartWorkers order_;
  std::vector<uint32_t> ports_;
  OomWatch memory_;
};

// Whether the last lines of a worker say that SIGKILL ended a process that it had started. Pure.
bool SaysChildWasKilled(const std::vector<std::string>& lines);

}  // namespace ddprun::agent
