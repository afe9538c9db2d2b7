#include "launcher/keeper/poller.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "launcher/keeper/clock.h"
#include "launcher/keeper/stop_policy.h"

namespace ddprun::keeper {
namespace {

uint64_t Token(Source source, size_t worker) {
  return static_cast<uint64_t>(source) << 32 | static_cast<uint64_t>(worker);
}

}  // namespace

std::string Poller::Open(clockid_t clock) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  sigset_t read_here;
  sigemptyset(&read_here);
  sigaddset(&read_here, SIGCHLD);
  sigaddset(&read_here, SIGTERM);
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  signals_.Reset(signalfd(-1, &read_here, SFD_CLOEXEC | SFD_NONBLOCK));
  timer_.Reset(timerfd_create(clock, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_.valid() || !signals_.valid() || !timer_.valid()) {
    return std::string("cannot make epoll, signalfd and timerfd: ") + strerrordesc_np(errno);
  }
  Watch(signals_.get(), Source::kSignals);
  Watch(timer_.get(), Source::kTimer);
  return "";
}

void Poller::Watch(int fd, Source source, size_t worker) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = Token(source, worker);
  // Without it a death would go unnoticed: better to end, and the workers with us.
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    perror("ddprun-keeper: epoll_ctl");
    abort();
  }
  ++watched_;
}

void Poller::WantWrite(int fd, Source source, size_t worker, bool want) {
  epoll_event event{};
  event.events = want ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = Token(source, worker);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::Close(Fd* fd) {
  if (fd->valid()) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd->get(), nullptr);
  fd->Reset();
}

std::span<const Ready> Poller::Wait(int64_t deadline_ns) {
  Arm(deadline_ns);
  std::vector<epoll_event> events(watched_);
  int count = 0;
  do {
    count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
  } while (count < 0 && errno == EINTR);
  ready_.clear();
  for (int i = 0; i < count; ++i) {
    const uint64_t token = events[static_cast<size_t>(i)].data.u64;
    ready_.push_back({static_cast<Source>(token >> 32), static_cast<size_t>(token & 0xffffffff)});
    uint64_t expirations = 0;
    if (ready_.back().source == Source::kTimer &&
        read(timer_.get(), &expirations, sizeof expirations) > 0) {
      armed_ns_ = kNever;  // it has fired, and fires once
    }
  }
  return ready_;
}

void Poller::Arm(int64_t deadline_ns) {
  if (deadline_ns == armed_ns_) return;
  armed_ns_ = deadline_ns;
  itimerspec when{};  // zero disarms
  if (deadline_ns != kNever) {
    when.it_value.tv_sec = deadline_ns / kSecond;
    when.it_value.tv_nsec = deadline_ns % kSecond;
  }
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

bool Poller::TakeTerminate() {
  bool terminate = false;
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGTERM) terminate = true;
  }
  return terminate;
}

}  // namespace ddprun::keeper
