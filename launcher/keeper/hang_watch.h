// HangWatch: which workers stand still. What has moved since the last look decides; the workers
// themselves are asked nothing, so one that is stopped or spins is found as well.
//
// A worker that has said Hello moves when its step page changes. While it loads, saves, evaluates,
// or has not completed a step, output or processor time count too: such work may have nothing to
// tell for long. Any other program moves by output or by processor time of its whole tree (more
// than 1 % of one core).
// Threads: the keeper's alone. The class is pure (times are CLOCK_MONOTONIC, so that the sleep of
// the machine counts for nothing); TreeCpuNs reads /proc.
// Invariants: a standstill is told once; no time counts in which the keeper itself did not run.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ddprun::keeper {

struct StepPageContent;

// What a look sees of one worker.
struct WorkerFacts {
  bool runs = false;  // its program was started and its main process has not ended
  bool held = false;  // a debugger holds it, as an examination's does: this time counts for nothing
  const StepPageContent* page = nullptr;  // of one that has said Hello; else null
  uint64_t output_bytes = 0;
  int64_t cpu_ns = 0;  // of its process tree
};

struct Standstill {
  size_t worker = 0;
  int64_t still_ns = 0;
};

class HangWatch {
 public:
  // `hang_ns` 0: never looks by itself.
  HangWatch(size_t workers, int64_t hang_ns, int64_t now_ns);

  // Between two looks.
  int64_t interval_ns() const { return interval_ns_; }
  // False: off, paused, or over.
  bool on() const { return hang_ns_ > 0 && !paused_ && !over_; }
  // Looks, and names the workers that have stood still for `hang_ns` since they last moved and were
  // not named for it yet.
  std::vector<Standstill> Look(std::span<const WorkerFacts> facts, int64_t now_ns);
  int64_t StillNs(size_t worker, int64_t now_ns) const;

  // Between these nobody is expected to move; counting begins anew at the end.
  void Pause();
  void Continue(int64_t now_ns);
  // An order to stop was given: what stands still from now on is the stop's affair.
  void End() { over_ = true; }
  bool over() const { return over_; }

 private:
  struct Mark {
    bool seen = false;
    bool told = false;
    int64_t moved_ns = 0;
    uint64_t page_hash = 0;
    uint64_t first_step = 0;
    bool has_page = false;
    uint64_t output_bytes = 0;
    int64_t cpu_ns = 0;        // at cpu_since_ns
    int64_t cpu_since_ns = 0;  // begin of the window in which processor time is measured
  };
  // When it last moved, at the latest now; 0: not since the last look.
  int64_t MovedNs(Mark* mark, const WorkerFacts& facts, int64_t now_ns) const;

  int64_t hang_ns_;
  int64_t interval_ns_;
  int64_t last_look_ns_;
  bool paused_ = false;
  bool over_ = false;
  std::vector<Mark> marks_;
};

// Processor time of a process and all its descendants, of the ended ones as far as their parents
// have waited for them.
int64_t TreeCpuNs(pid_t main_pid);
// Whether a debugger has stopped the process.
bool IsHeldByDebugger(pid_t pid);

}  // namespace ddprun::keeper
