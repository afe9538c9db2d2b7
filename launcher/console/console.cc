#include "launcher/console/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "launcher/console/line_splitter.h"
#include "launcher/console/sink.h"

namespace ddprun {
namespace {

constexpr char kEraseLine[] = "\r\x1b[K";
constexpr size_t kDefaultColumns = 80;
constexpr auto kLastWords = std::chrono::seconds(1);
// A thread that only waits for its reader ends at once when it is told to.
constexpr auto kGivingUp = std::chrono::milliseconds(200);

bool ShowsStatus(int fd) {
  const char* term = getenv("TERM");
  return isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

size_t Columns(int fd) {
  struct winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kDefaultColumns;
}

// The output of one worker that is not shown yet.
struct Stream {
  Stream() : splitter(Console::kLineBytesMax) {}

  void ShowUpdate(const std::string& prefix, Sink* sink) {
    if (update) sink->AppendOutput(prefix, *update);
    update.reset();
  }
  // All that waits.
  void ShowRest(const std::string& prefix, Sink* sink) {
    ShowUpdate(prefix, sink);
    const std::string rest = splitter.TakePartial();
    if (!rest.empty()) sink->AppendOutput(prefix, rest);
  }
  void Show(const std::string& prefix, std::string_view line, LineSplitter::End end, Sink* sink) {
    using std::chrono::steady_clock;
    switch (end) {
      case LineSplitter::End::kReturn: {
        const auto now = steady_clock::now();
        update = line;
        if (now < next_update) return;
        next_update = now + std::chrono::duration_cast<steady_clock::duration>(
                                std::chrono::duration<double>(Console::kUpdateSeconds));
        return ShowUpdate(prefix, sink);
      }
      case LineSplitter::End::kLateLineFeed:
        return ShowUpdate(prefix, sink);
      case LineSplitter::End::kLineFeed:
        ShowUpdate(prefix, sink);
        return sink->AppendOutput(prefix, line);
    }
  }

  LineSplitter splitter;
  std::optional<std::string> update;  // the newest, while it is not shown
  std::chrono::steady_clock::time_point next_update;
};

// What the console and its writing thread share. It outlives a console whose thread is stuck in a
// write that never returns (a terminal stopped with Ctrl-S).
class Shared {
 public:
  Shared(int output_fd, int error_fd)
      : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        shows_status_(ShowsStatus(error_fd)),
        sinks_{Sink(output_fd, Console::kQueueBytesMax), Sink(error_fd, Console::kQueueBytesMax)},
        error_(SameFile(output_fd, error_fd) ? sinks_[0] : sinks_[1]) {}
  ~Shared() { close(wake_fd_); }

  void Run();
  bool shows_status() const { return shows_status_; }
  Sink& output() { return sinks_[0]; }
  Sink& error() { return error_; }
  // Queues the line about output that its reader did not take. False: there is none, or no other
  // place to say so.
  bool SayUnshown();
  void Wake() {
    const uint64_t one = 1;
    // The counter cannot overflow before the reader takes it.
    [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
  }

  std::mutex mutex;
  std::condition_variable progressed;
  std::map<std::string, Stream> streams;
  std::string status_wanted;
  bool stopping = false;   // all that waits is still to be written
  bool giving_up = false;  // no more
  bool finished = false;

 private:
  // Gives each idle sink its next bytes; false when there is nothing to do. Mutex held.
  bool Refill();
  void WaitAndWrite(bool something);

  const int wake_fd_;
  const bool shows_status_;
  std::array<Sink, 2> sinks_;
  Sink& error_;
  std::string status_shown_;
};

bool Shared::Refill() {
  bool something = false;
  for (Sink& sink : sinks_) {
    sink.Account();
    if (!sink.HasReady() && !sink.queue_empty()) {
      const bool covers = sink.terminal() && !status_shown_.empty();
      sink.Refill(covers ? kEraseLine : "");
      if (covers) status_shown_.clear();
    }
    something = something || sink.HasReady();
  }
  // Only when all lines are out, so that a burst of lines does not redraw it each time.
  if (shows_status_ && !something && status_shown_ != status_wanted) {
    status_shown_ = status_wanted;
    error_.Refill(kEraseLine + status_wanted.substr(0, Columns(error_.fd()) - 1));
    something = error_.HasReady();
  }
  return something;
}

bool Shared::SayUnshown() {
  const uint64_t unshown = sinks_[0].waiting() + sinks_[0].dropped_total();
  if (&error_ == &sinks_[0] || sinks_[0].waiting() == 0) return false;
  error_.AppendOwn("ddprun: standard output was not read: " + std::to_string(unshown) +
                   " bytes of the workers' output were not shown; the log files have them\n");
  return true;
}

void Shared::WaitAndWrite(bool something) {
  std::array<pollfd, 3> polled = {{{wake_fd_, POLLIN, 0}, {-1, POLLOUT, 0}, {-1, POLLOUT, 0}}};
  for (size_t i = 0; i < sinks_.size(); ++i) {
    if (something && sinks_[i].HasReady()) polled[i + 1].fd = sinks_[i].fd();
  }
  if (poll(polled.data(), polled.size(), -1) <= 0) return;
  uint64_t count = 0;
  if (polled[0].revents != 0) {
    [[maybe_unused]] const ssize_t taken = read(wake_fd_, &count, sizeof count);
  }
  for (size_t i = 0; i < sinks_.size(); ++i) {
    if (polled[i + 1].revents != 0) sinks_[i].WriteSome();
  }
}

void Shared::Run() {
  while (true) {
    bool something = false;
    {
      std::lock_guard lock(mutex);
      something = Refill();
      if (giving_up || (stopping && !something)) {
        finished = true;
        progressed.notify_all();
        return;
      }
      progressed.notify_all();
    }
    WaitAndWrite(something);
  }
}

}  // namespace

struct Console::Impl {
  explicit Impl(int output_fd, int error_fd)
      : shared(std::make_shared<Shared>(output_fd, error_fd)) {
    // Signals are for others, and SIGPIPE of a reader that has gone is answered here by its errno.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    writer = std::thread([state = shared] { state->Run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  std::shared_ptr<Shared> shared;
  std::thread writer;
};

Console::Console() : Console(STDOUT_FILENO, STDERR_FILENO) {}
Console::Console(int output_fd, int error_fd)
    : impl_(std::make_unique<Impl>(output_fd, error_fd)) {}

Console::~Console() {
  Shared& shared = *impl_->shared;
  std::unique_lock lock(shared.mutex);
  for (auto& [prefix, stream] : shared.streams) stream.ShowRest(prefix, &shared.output());
  shared.output().ReportDrops();
  shared.status_wanted.clear();
  shared.stopping = true;
  shared.Wake();
  const auto is_finished = [&shared] { return shared.finished; };
  if (!shared.progressed.wait_for(lock, kLastWords, is_finished)) {
    if (shared.SayUnshown()) {
      shared.Wake();
      shared.progressed.wait_for(lock, kGivingUp, [&] { return shared.error().waiting() == 0; });
    }
    shared.giving_up = true;
    shared.Wake();
    shared.progressed.wait_for(lock, kGivingUp, is_finished);
  }
  const bool finished = shared.finished;
  lock.unlock();
  if (finished) {
    impl_->writer.join();
  } else {
    impl_->writer.detach();  // stuck in a write; it holds what it needs
  }
}

void Console::WorkerOutput(const std::string& prefix, std::string_view bytes,
                           size_t dropped_before) {
  Shared& shared = *impl_->shared;
  std::lock_guard lock(shared.mutex);
  Sink& sink = shared.output();
  Stream& stream = shared.streams[prefix];
  const bool idle = sink.queue_empty();
  if (dropped_before > 0) {
    stream.ShowRest(prefix, &sink);
    sink.CountDropped(dropped_before);
  }
  stream.splitter.Feed(bytes, [&](std::string_view line, LineSplitter::End end) {
    stream.Show(prefix, line, end, &sink);
  });
  if (idle && !sink.queue_empty()) shared.Wake();
}

void Console::WorkerLine(std::string_view line) {
  Shared& shared = *impl_->shared;
  std::lock_guard lock(shared.mutex);
  const bool idle = shared.output().queue_empty();
  shared.output().AppendLine(line);
  if (idle) shared.Wake();
}

void Console::EndOf(const std::string& prefix) {
  Shared& shared = *impl_->shared;
  std::lock_guard lock(shared.mutex);
  auto found = shared.streams.find(prefix);
  if (found == shared.streams.end()) return;
  found->second.ShowRest(prefix, &shared.output());
  shared.streams.erase(found);
  shared.Wake();
}

void Console::Say(const std::string& line) {
  Shared& shared = *impl_->shared;
  std::lock_guard lock(shared.mutex);
  shared.error().AppendOwn(line + "\n");
  shared.Wake();
}

void Console::Status(const std::string& line) {
  Shared& shared = *impl_->shared;
  if (!shared.shows_status()) return;
  std::lock_guard lock(shared.mutex);
  if (shared.status_wanted == line) return;
  shared.status_wanted = line;
  shared.Wake();
}

bool Console::IsTerminal() const {
  return impl_->shared->shows_status();
}

void Console::Flush(double timeout_seconds) {
  Shared& shared = *impl_->shared;
  std::unique_lock lock(shared.mutex);
  const uint64_t output = shared.output().appended();
  const uint64_t error = shared.error().appended();
  shared.progressed.wait_for(lock, std::chrono::duration<double>(timeout_seconds), [&] {
    return shared.output().done() >= output && shared.error().done() >= error;
  });
}

}  // namespace ddprun
