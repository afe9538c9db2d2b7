// Data files that are mapped, so that a page of one that cannot be read (the file was cut, or its
// disk or server failed) is told with file and byte before SIGBUS ends the process.
//
// A fixed table, written by any thread and read by the signal's handler, which calls nothing but
// async-signal-safe functions.
#pragma once

#include <cstddef>
#include <string>

namespace ddprun {

// A range of memory that a file is mapped to, from its first byte on. Ranges beyond the table's
// size are not remembered: then SIGBUS says nothing of them. Longer paths are shortened in front.
void RememberMapped(const void* begin, size_t bytes, const std::string& path);
// Before munmap.
void ForgetMapped(const void* begin);

// Takes SIGBUS over, once for a process. The default action follows what it says.
void TellOfUnreadablePages();

}  // namespace ddprun
