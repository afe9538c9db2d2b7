#include "launcher/cli/remote_agents.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/cli/remote_host.h"

namespace ddprun::cli {
namespace {

// A login takes CPU time here and there; more at once would only be slower.
constexpr int kStartingMax = 16;

// From the job's end on: what still runs loses its input, gets TERM, and KILL.
constexpr std::chrono::seconds kEndByThemselves{3};
constexpr std::chrono::seconds kEndWithoutInput{3};
constexpr std::chrono::seconds kEndByTerm{2};

}  // namespace

class RemoteAgents::Impl {
 public:
  explicit Impl(RemoteAgentsOptions options)
      : options_(std::move(options)), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (const RemoteHost& host : options_.hosts) hosts_.emplace_back(host, options_);
    thread_ = std::thread([this] { Run(); });
  }
  ~Impl() {
    End();
    close(wake_fd_);
  }

  void JobIsOver() {
    job_over_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
  }

  void End() {
    JobIsOver();
    std::lock_guard lock(end_mutex_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  using State = RemoteHostState::State;

  void Run() {
    while (!job_over_) {
      const auto now = RemoteClock::now();
      StartDue(now);
      for (RemoteHostState& host : hosts_) {
        if (host.due() <= now) host.TimePassed(now);
      }
      CountFailures();
      Wait(NextDue());
      PumpAll();
    }
    EndAll();
  }

  void StartDue(RemoteClock::time_point now) {
    auto starting = std::count_if(hosts_.begin(), hosts_.end(), [](const RemoteHostState& host) {
      return host.state() == State::kStarting;
    });
    for (RemoteHostState& host : hosts_) {
      if (starting >= kStartingMax) return;
      if (host.state() != State::kWaiting || host.due() > now) continue;
      host.Start(now);
      if (host.state() == State::kStarting) ++starting;
    }
  }

  void CountFailures() {
    std::vector<std::string> failed;
    for (const RemoteHostState& host : hosts_) {
      if (host.failed_at_first()) failed.push_back(host.host().entry.host);
    }
    if (told_too_few_ || hosts_.size() - failed.size() >= options_.hosts_needed) return;
    told_too_few_ = true;
    options_.on_too_few(absl::StrCat(failed.size(), " of ", hosts_.size(),
                                     " hosts could not be used (", absl::StrJoin(failed, ", "),
                                     "), and ", options_.hosts_needed, " are needed"));
  }

  RemoteClock::time_point NextDue() const {
    auto next = RemoteClock::time_point::max();
    for (const RemoteHostState& host : hosts_) {
      const bool timed = host.state() == State::kWaiting || host.state() == State::kStarting ||
                         host.state() == State::kEnding;
      if (timed) next = std::min(next, host.due());
    }
    return next;
  }

  void Wait(RemoteClock::time_point until) {
    std::vector<pollfd> polled = {{wake_fd_, POLLIN, 0}};
    for (RemoteHostState& host : hosts_) {
      RemoteProcess* process = host.process();
      if (process == nullptr) continue;
      for (int fd : {process->end_fd(), process->output_fd(), process->error_fd()}) {
        polled.push_back({fd, POLLIN, 0});
      }
    }
    int milliseconds = -1;
    if (until != RemoteClock::time_point::max()) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(until - RemoteClock::now()).count();
      milliseconds = static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
    }
    poll(polled.data(), polled.size(), milliseconds);
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t taken = read(wake_fd_, &count, sizeof count);
  }

  void PumpAll() {
    const auto now = RemoteClock::now();
    for (RemoteHostState& host : hosts_) host.Pump(now);
  }

  bool AllEndedUntil(RemoteClock::time_point until) {
    const auto alive = [this] {
      return std::any_of(hosts_.begin(), hosts_.end(),
                         [](RemoteHostState& host) { return host.process() != nullptr; });
    };
    while (alive() && RemoteClock::now() < until) {
      Wait(until);
      PumpAll();
    }
    return !alive();
  }

  template <typename Do>
  void ForProcesses(Do what) {
    for (RemoteHostState& host : hosts_) {
      if (host.process() != nullptr) what(host, *host.process());
    }
  }

  void EndAll() {
    for (RemoteHostState& host : hosts_) host.ExpectEnd();
    ForProcesses([](RemoteHostState& host, RemoteProcess& process) {
      if (host.state() == State::kStarting) process.Signal(SIGTERM);
    });
    if (AllEndedUntil(RemoteClock::now() + kEndByThemselves)) return;
    ForProcesses([](RemoteHostState&, RemoteProcess& process) { process.CloseInput(); });
    if (AllEndedUntil(RemoteClock::now() + kEndWithoutInput)) return;
    ForProcesses([](RemoteHostState&, RemoteProcess& process) { process.Signal(SIGTERM); });
    if (AllEndedUntil(RemoteClock::now() + kEndByTerm)) return;
    // The destructor kills.
    ForProcesses([this](RemoteHostState& host, RemoteProcess&) {
      options_.console->Say(absl::StrCat("ddprun: host ", host.host().entry.target,
                                         ": ssh did not end in time, and is killed"));
    });
    hosts_.clear();
  }

  const RemoteAgentsOptions options_;
  const int wake_fd_;
  std::atomic<bool> job_over_ = false;
  std::vector<RemoteHostState> hosts_;  // of the thread
  bool told_too_few_ = false;
  std::mutex end_mutex_;
  std::thread thread_;
};

RemoteAgents::RemoteAgents(RemoteAgentsOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
RemoteAgents::~RemoteAgents() = default;

void RemoteAgents::JobIsOver() {
  impl_->JobIsOver();
}

void RemoteAgents::End() {
  impl_->End();
}

}  // namespace ddprun::cli
