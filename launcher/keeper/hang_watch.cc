#include "launcher/keeper/hang_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "common/process_tree.h"
#include "launcher/keeper/clock.h"
#include "launcher/keeper/step_page.h"

namespace ddprun::keeper {
namespace {

constexpr int kLooksPerTimeout = 8;
constexpr int64_t kIntervalMinNs = kSecond / 4;  // only for time-outs that are very short
constexpr int64_t kCpuWindowNs = kSecond;        // the kernel counts in ticks of 10 ms
constexpr int64_t kCpuShare = 100;               // one part in so many of one core is no motion

// Phases of proto/worker_protocol.md in which a worker is busy without telling.
constexpr uint32_t kStarting = 0;
constexpr uint32_t kLoading = 1;
constexpr uint32_t kCheckpoint = 6;
constexpr uint32_t kEvaluating = 7;

uint64_t HashOf(const StepPageContent& page) {
  uint64_t hash = 0xcbf29ce484222325;
  for (uint64_t word : {uint64_t{page.phase}, page.step, page.changed_ns, page.collective_started,
                        page.collective_finished}) {
    hash = (hash ^ word) * 0x100000001b3;
  }
  return hash;
}

bool IsBusySilently(const StepPageContent& page, uint64_t first_step) {
  return page.phase == kLoading || page.phase == kCheckpoint || page.phase == kEvaluating ||
         (page.phase == kStarting && page.step == first_step);
}

}  // namespace

HangWatch::HangWatch(size_t workers, int64_t hang_ns, int64_t now_ns)
    : hang_ns_(hang_ns),
      interval_ns_(std::max(hang_ns / kLooksPerTimeout, kIntervalMinNs)),
      last_look_ns_(now_ns),
      marks_(workers) {}

std::vector<Standstill> HangWatch::Look(std::span<const WorkerFacts> facts, int64_t now_ns) {
  // A look that comes late means that this process stood still itself, and with it most likely the
  // workers.
  const int64_t since_ns = now_ns - last_look_ns_;
  const int64_t lost_ns = hang_ns_ > 0 && since_ns > 2 * interval_ns_ ? since_ns - interval_ns_ : 0;
  std::vector<Standstill> found;
  for (size_t i = 0; i < marks_.size(); ++i) {
    Mark& mark = marks_[i];
    if (!facts[i].runs) {
      mark = Mark{};
      continue;
    }
    if (facts[i].held && mark.seen) {
      mark.moved_ns += since_ns;
      mark.cpu_since_ns += since_ns;
      continue;
    }
    mark.moved_ns += lost_ns;
    const int64_t moved_ns = MovedNs(&mark, facts[i], now_ns);
    if (moved_ns != 0) {
      mark.moved_ns = moved_ns;
      mark.told = false;
    }
    const int64_t still_ns = now_ns - mark.moved_ns;
    if (!on() || mark.told || still_ns < hang_ns_) continue;
    mark.told = true;
    found.push_back({i, still_ns});
  }
  last_look_ns_ = now_ns;
  return found;
}

int64_t HangWatch::MovedNs(Mark* mark, const WorkerFacts& facts, int64_t now_ns) const {
  int64_t moved_ns = 0;
  if (!mark->seen) {
    *mark = Mark{.seen = true, .cpu_ns = facts.cpu_ns, .cpu_since_ns = now_ns};
    moved_ns = now_ns;
  }
  bool others_count = true;
  if (facts.page != nullptr) {
    const uint64_t hash = HashOf(*facts.page);
    if (!mark->has_page) mark->first_step = facts.page->step;
    if (!mark->has_page || hash != mark->page_hash) {
      // The page's own time where it can be true: it is what ranks are compared by.
      moved_ns = std::clamp(static_cast<int64_t>(facts.page->changed_ns),
                            std::min(last_look_ns_, now_ns), now_ns);
    }
    mark->has_page = true;
    mark->page_hash = hash;
    others_count = IsBusySilently(*facts.page, mark->first_step);
  }
  const bool wrote = facts.output_bytes != mark->output_bytes;
  mark->output_bytes = facts.output_bytes;
  bool computed = false;
  const int64_t window_ns = now_ns - mark->cpu_since_ns;
  if (window_ns >= kCpuWindowNs) {
    computed = (facts.cpu_ns - mark->cpu_ns) * kCpuShare > window_ns;
    mark->cpu_ns = facts.cpu_ns;
    mark->cpu_since_ns = now_ns;
  }
  return others_count && (wrote || computed) ? now_ns : moved_ns;
}

int64_t HangWatch::StillNs(size_t worker, int64_t now_ns) const {
  return marks_[worker].seen ? now_ns - marks_[worker].moved_ns : 0;
}

void HangWatch::Pause() {
  paused_ = true;
}

void HangWatch::Continue(int64_t now_ns) {
  paused_ = false;
  last_look_ns_ = now_ns;
  for (Mark& mark : marks_) mark = Mark{};
}

namespace {

constexpr size_t kStatBytes = 1024;

// What stands behind the name in /proc/<pid>/stat: " S 1 …"; null where the process is gone.
const char* StatOf(pid_t pid, char (&text)[kStatBytes]) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0) return nullptr;
  text[size] = '\0';
  const char* name_end = strrchr(text, ')');  // a process may call itself "a) R 1"
  return name_end != nullptr ? name_end + 1 : nullptr;
}

// utime, stime, cutime and cstime, in ticks.
int64_t TicksOf(pid_t pid) {
  char text[kStatBytes];
  const char* rest = StatOf(pid, text);
  long long user = 0, system = 0, children_user = 0, children_system = 0;
  if (rest == nullptr ||
      sscanf(rest, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld %lld %lld", &user,
             &system, &children_user, &children_system) != 4) {
    return 0;
  }
  return user + system + children_user + children_system;
}

}  // namespace

int64_t TreeCpuNs(pid_t main_pid) {
  int64_t ticks = TicksOf(main_pid);
  for (pid_t pid : ListDescendants(main_pid)) ticks += TicksOf(pid);
  return ticks * (kSecond / sysconf(_SC_CLK_TCK));
}

bool IsHeldByDebugger(pid_t pid) {
  char text[kStatBytes];
  const char* rest = StatOf(pid, text);
  return rest != nullptr && rest[0] == ' ' && rest[1] == 't';
}

}  // namespace ddprun::keeper
