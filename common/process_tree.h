// The descendants of a process, found through /proc, and signals to all of them.
//
// Threads: free functions without state; any thread.
// A list is a snapshot: what forks meanwhile is missing, what ended may still be named. So whoever
// must get rid of a tree is a child subreaper (PR_SET_CHILD_SUBREAPER), and repeats
// {KillDescendants, reap} until waitid says ECHILD: orphans come back to it as children, so that
// setsid, double forks and new process groups hide nothing.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <span>
#include <vector>

namespace ddprun {

// All descendants of root, without root, parents before their children. The pids in `except` are
// neither listed nor entered.
std::vector<pid_t> ListDescendants(pid_t root, std::span<const pid_t> except = {});

// Sends the signal to each and returns whom it was sent to (also those that could not take it any
// more).
std::vector<pid_t> KillDescendants(pid_t root, std::span<const pid_t> except = {},
                                   int signal = SIGKILL);

// The two ways of listing; ListDescendants takes the first one where the kernel has it. ByScan
// reads the whole of /proc.
std::vector<pid_t> ListDescendantsByChildren(pid_t root, std::span<const pid_t> except);
std::vector<pid_t> ListDescendantsByScan(pid_t root, std::span<const pid_t> except);

}  // namespace ddprun
