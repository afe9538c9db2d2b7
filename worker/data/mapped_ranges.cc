#include "worker/data/mapped_ranges.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace ddprun {
namespace {

// Two splits of at most five files each, twice.
constexpr size_t kRangesMax = 32;
constexpr size_t kPathBytesMax = 1024;
constexpr size_t kDigitsMax = 20;

struct Range {
  std::atomic<bool> taken = false;   // by a writer
  std::atomic<uintptr_t> begin = 0;  // 0: not valid; the last to be written, the first to go
  std::atomic<size_t> bytes = 0;
  std::array<char, kPathBytesMax> path = {};
};
std::array<Range, kRangesMax> ranges;

// Threads of one process come upon the same file at the same time; the first one tells.
std::atomic<bool> telling = false;
std::atomic<bool> told = false;

// One line, put together without memory from the heap.
class Line {
 public:
  void Add(const char* text) { Add(text, strlen(text)); }
  void Add(size_t number) {
    std::array<char, kDigitsMax> digits;
    size_t at = digits.size();
    do {
      digits[--at] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    Add(&digits[at], digits.size() - at);
  }
  void Write(int fd) const {
    size_t done = 0;
    while (done < size_) {
      const ssize_t written = write(fd, &bytes_[done], size_ - done);
      if (written <= 0) return;
      done += static_cast<size_t>(written);
    }
  }

 private:
  void Add(const char* text, size_t size) {
    size = std::min(size, bytes_.size() - size_);
    memcpy(&bytes_[size_], text, size);
    size_ += size;
  }
  std::array<char, kPathBytesMax + 512> bytes_;
  size_t size_ = 0;
};

void Tell(uintptr_t address) {
  for (const Range& range : ranges) {
    const uintptr_t begin = range.begin.load();
    if (begin == 0 || address < begin || address - begin >= range.bytes.load()) continue;
    Line line;
    line.Add("ddp-worker: ");
    line.Add(range.path.data());
    line.Add(": byte ");
    line.Add(address - begin);
    line.Add(
        " cannot be read any more: the file was cut, or its disk or file server failed, while it "
        "was in use; restore it (data files must not change under a running job), then go on by "
        "--resume\n");
    line.Write(STDERR_FILENO);
    return;
  }
}

void OnSigbus(int signal_number, siginfo_t* info, void* /*context*/) {
  if (!telling.exchange(true)) {
    if (info->si_code > 0) Tell(reinterpret_cast<uintptr_t>(info->si_addr));
    signal(SIGBUS, SIG_DFL);
    told.store(true);
  }
  while (!told.load()) {
    const timespec moment = {.tv_sec = 0, .tv_nsec = 1'000'000};
    nanosleep(&moment, nullptr);
  }
  // What failed is tried again on return, and ends the process; a signal that was sent is not.
  if (info->si_code <= 0) raise(signal_number);
}

}  // namespace

void RememberMapped(const void* begin, size_t bytes, const std::string& path) {
  for (Range& range : ranges) {
    if (range.taken.exchange(true)) continue;
    const size_t kept = std::min(path.size(), kPathBytesMax - 1);
    memcpy(range.path.data(), path.data() + (path.size() - kept), kept);
    range.path[kept] = '\0';
    range.bytes.store(bytes);
    range.begin.store(reinterpret_cast<uintptr_t>(begin));
    return;
  }
}

void ForgetMapped(const void* begin) {
  for (Range& range : ranges) {
    if (range.begin.load() != reinterpret_cast<uintptr_t>(begin)) continue;
    range.begin.store(0);
    range.taken.store(false);
    return;
  }
}

void TellOfUnreadablePages() {
  struct sigaction action = {};
  action.sa_sigaction = &OnSigbus;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace ddprun
