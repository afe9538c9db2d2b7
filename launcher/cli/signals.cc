#include "launcher/cli/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace ddprun::cli {
namespace {

// GNU timeout and some batch systems send a stop signal to the process and then to its whole group:
// one wish, told twice by the same sender. Slurm repeats SIGTERM, seconds later, while a step ends
// at its time limit; only its SIGKILL means more.
std::chrono::milliseconds OneWish() {
  return std::chrono::milliseconds(std::getenv("SLURM_JOB_ID") != nullptr ? 60'000 : 1000);
}

// Zero: each one counts. For SIGINT the time is short, since scripts stand in for a person's second
// Ctrl-C (one that comes from the terminal has no sender and always counts).
std::chrono::milliseconds SameWish(uint32_t signal, std::chrono::milliseconds one_wish) {
  if (signal == SIGINT) return std::chrono::milliseconds(20);
  const bool stops = signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
  return stops ? one_wish : std::chrono::milliseconds(0);
}

std::vector<int>& ListedSignals() {
  static auto* listed = new std::vector<int>;
  return *listed;
}

sigset_t HandledSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) sigaddset(&set, signal);
  for (int signal : ListedSignals()) sigaddset(&set, signal);
  struct sigaction hangup = {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN) {
    sigdelset(&set, SIGHUP);
  }
  return set;
}

}  // namespace

void BlockSignals(const std::vector<int>& listed) {
  ListedSignals() = listed;
  const sigset_t set = HandledSignals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

int AwaitSignal(const std::vector<int>& signals, double seconds) {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : signals) sigaddset(&set, signal);
  timespec time = {};
  time.tv_sec = static_cast<time_t>(seconds);
  time.tv_nsec = static_cast<long>((seconds - static_cast<double>(time.tv_sec)) * 1e9);
  const int signal = sigtimedwait(&set, nullptr, &time);
  return signal > 0 ? signal : 0;
}

SignalThread::SignalThread(std::function<void(int)> on_signal, std::function<void()> on_tick,
                           int tick_seconds)
    : on_signal_(std::move(on_signal)),
      on_tick_(std::move(on_tick)),
      tick_milliseconds_(on_tick_ ? tick_seconds * 1000 : -1),
      one_wish_(OneWish()),
      end_fd_(eventfd(0, EFD_CLOEXEC)) {
  const sigset_t set = HandledSignals();
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC);
  thread_ = std::thread([this] { Run(); });
}

SignalThread::~SignalThread() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(end_fd_, &one, sizeof one);
  thread_.join();
  close(signal_fd_);
  close(end_fd_);
}

void SignalThread::Run() {
  signalfd_siginfo last = {};  // that stops
  std::chrono::steady_clock::time_point last_came;
  while (true) {
    std::array<pollfd, 2> polled = {{{signal_fd_, POLLIN, 0}, {end_fd_, POLLIN, 0}}};
    const int ready = poll(polled.data(), polled.size(), tick_milliseconds_);
    if (polled[1].revents != 0) return;
    if (ready == 0) on_tick_();
    if (ready <= 0 || polled[0].revents == 0) continue;
    signalfd_siginfo info = {};
    if (read(signal_fd_, &info, sizeof info) != sizeof info) continue;
    const auto now = std::chrono::steady_clock::now();
    const auto within = SameWish(info.ssi_signo, one_wish_);
    const bool same_wish = info.ssi_code == SI_USER && info.ssi_pid == last.ssi_pid &&
                           info.ssi_signo == last.ssi_signo && now - last_came < within;
    // Others come in between: a batch system wakes what it stops.
    if (within > within.zero()) {
      last = info;
      last_came = now;
    }
    if (!same_wish) on_signal_(static_cast<int>(info.ssi_signo));
  }
}

}  // namespace ddprun::cli
