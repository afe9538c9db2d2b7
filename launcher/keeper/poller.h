// Poller: what the keeper waits for: descriptors, two signals, one deadline. epoll with named
// sources; an idle keeper sleeps in it.
//
// Threads: the keeper's alone, and it must have no other, since the signals are blocked for the
// thread. The deadline is a timer on the clock that Open is given; on CLOCK_BOOTTIME one that
// passed while the machine slept is noticed on waking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <vector>

#include "launcher/keeper/fd.h"

namespace ddprun::keeper {

// In the order in which one wake-up deals with them, but for the agent and the signals.
enum class Source : uint32_t { kStartPipe, kSocket, kLog, kExit, kAgent, kSignals, kTimer };

struct Ready {
  Source source = Source::kTimer;
  size_t worker = 0;
};

class Poller {
 public:
  // Empty, or what went wrong. Blocks every signal: CHLD and TERM are read by TakeSignals, all
  // others are thereby ignored.
  std::string Open(clockid_t clock);
  void Watch(int fd, Source source, size_t worker = 0);
  // Also wake up when the descriptor takes data again.
  void WantWrite(int fd, Source source, size_t worker, bool want);
  // The end of a watched descriptor. Closing it is not enough: a child between fork and exec holds
  // a copy, and epoll would go on telling of it.
  void Close(Fd* fd);
  // Waits for anything, or until the deadline (kNever: no deadline). In the order in which they
  // became ready.
  std::span<const Ready> Wait(int64_t deadline_ns);
  // Reads the pending signals. True: TERM was among them.
  bool TakeTerminate();

 private:
  void Arm(int64_t deadline_ns);

  Fd epoll_;
  Fd signals_;
  Fd timer_;
  int64_t armed_ns_ = INT64_MAX;
  size_t watched_ = 0;
  std::vector<Ready> ready_;
};

}  // namespace ddprun::keeper
