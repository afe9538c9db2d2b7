// What a signal would do to a process, as /proc tells.
#pragma once

#include <sys/types.h>

namespace ddprun::keeper {

// Whether the process handles the signal, ignores it, or has it blocked (to wait for it by
// sigwait or signalfd). False: its default action comes, or nothing is known of the process.
bool Expects(pid_t pid, int signal);

}  // namespace ddprun::keeper
