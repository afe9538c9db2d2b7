// The file in the run folder by which the nodes of a step of Slurm find each other: where the
// coordinator listens, and the job's secret. The host writes it, members wait for it, the host
// removes it at the end.
//
// It is made for its owner alone (0600, a new file under a name of its own, renamed into place),
// and a member takes nothing but a regular file of its own user that nobody else can read or write:
// no link, no other owner. It names job, step and count of requeues, so that one left by an earlier
// start is known as such. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/cli/cluster.h"
#include "launcher/cli/slurm.h"

namespace ddprun::cli {

inline constexpr char kRendezvousName[] = ".rendezvous";

struct Rendezvous {
  std::string slurm_job;
  std::string slurm_step;
  uint32_t restarts = 0;
  std::string node;                    // that hosts
  std::vector<std::string> addresses;  // of that node, numeric, the best first
  uint32_t port = 0;                   // 0: nothing was started
  int exit_code = 0;                   // then
  std::string secret;                  // "": the user has set one, which is not written
};

// Pure. A text that is none of ours is INVALID_ARGUMENT; it is not repeated in the error.
std::string RendezvousText(const Rendezvous& rendezvous);
absl::StatusOr<Rendezvous> ParseRendezvous(const std::string& text);
bool IsOf(const Rendezvous& rendezvous, const SlurmStep& step);

// Replaces the file of an earlier start. `run_dir` exists.
absl::Status WriteRendezvous(const std::string& run_dir, const Rendezvous& rendezvous);
// NOT_FOUND where there is none; INVALID_ARGUMENT for one that must not be trusted.
absl::StatusOr<Rendezvous> ReadRendezvous(const std::string& run_dir);
// Removes it, if it is still the one of this step; one that says that nothing was started stays.
void RemoveRendezvous(const std::string& run_dir, const SlurmStep& step);

// Until the file of this start of `step` is there. DEADLINE_EXCEEDED: it has not come, and what
// that means; CANCELLED: a signal has ended the wait.
absl::StatusOr<Rendezvous> AwaitRendezvous(const std::string& run_dir, const SlurmStep& step,
                                           double seconds_max, const ClusterWait& wait);

}  // namespace ddprun::cli
