#include "launcher/cli/remote_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "common/own_children.h"

namespace ddprun::cli {
namespace {

constexpr size_t kReadBytes = 65536;

struct Pipe {
  int read = -1;
  int write = -1;
};

// Above the standard streams, which may be closed here.
absl::StatusOr<Pipe> MakePipe() {
  constexpr int kFirstFree = 3;
  std::array<int, 2> ends = {-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  for (int& end : ends) {
    if (end >= kFirstFree) continue;
    const int moved = fcntl(end, F_DUPFD_CLOEXEC, kFirstFree);
    close(end);
    end = moved;
  }
  return Pipe{ends[0], ends[1]};
}

void Close(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// In the child: only what is safe behind a fork of a process with threads.
[[noreturn]] void RunChild(pid_t parent, const std::array<int, 3>& streams, char* const* argv,
                           char* const* environment) {
  constexpr int kCannotExecute = 127;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kCannotExecute);  // it died before the line above
  setpgid(0, 0);
  for (int i = 0; i < 3; ++i) dup2(streams[static_cast<size_t>(i)], i);
  close_range(3, ~0U, 0);
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(argv[0], argv, environment);
  _exit(kCannotExecute);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteProcess>> RemoteProcess::Start(
    const std::vector<std::string>& argv, const std::vector<std::string>& environment,
    std::string_view first_line) {
  std::array<Pipe, 3> pipes;
  absl::Status status;
  for (Pipe& pipe : pipes) {
    const absl::StatusOr<Pipe> made = MakePipe();
    if (made.ok()) pipe = *made;
    status.Update(made.status());
  }
  std::unique_ptr<RemoteProcess> process(new RemoteProcess);
  process->input_ = pipes[0].write;
  process->output_ = pipes[1].read;
  process->error_ = pipes[2].read;
  std::array<int, 3> streams = {pipes[0].read, pipes[1].write, pipes[2].write};
  if (status.ok()) {
    const std::vector<char*> arguments = Pointers(argv);
    const std::vector<char*> variables = Pointers(environment);
    const pid_t parent = getpid();
    const pid_t pid = OwnChildren::Get().Add([&] {
      const pid_t child = _Fork();
      if (child == 0) RunChild(parent, streams, arguments.data(), variables.data());
      return child;
    });
    if (pid < 0) status = absl::ErrnoToStatus(errno, "fork");
    if (pid > 0) {
      process->pid_ = pid;
      process->pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
      if (process->pidfd_ < 0) status = absl::ErrnoToStatus(errno, "pidfd_open");
    }
  }
  for (int& stream : streams) Close(&stream);
  if (!status.ok()) return status;
  for (int fd : {process->output_, process->error_}) fcntl(fd, F_SETFL, O_NONBLOCK);
  // It may have ended already: then there is nobody to read it, and its end tells why.
  [[maybe_unused]] const ssize_t written =
      write(process->input_, first_line.data(), first_line.size());
  return process;
}

RemoteProcess::~RemoteProcess() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    kill(pid_, SIGKILL);
    Reap();
  }
  for (int* fd : {&pidfd_, &input_, &output_, &error_}) Close(fd);
}

std::string RemoteProcess::ReadSome(int* fd) {
  if (*fd < 0) return "";
  std::string bytes(kReadBytes, '\0');
  const ssize_t got = read(*fd, bytes.data(), bytes.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return "";
  if (got <= 0) {
    Close(fd);
    return "";
  }
  bytes.resize(static_cast<size_t>(got));
  return bytes;
}

bool RemoteProcess::HasEnded() const {
  pollfd polled = {pidfd_, POLLIN, 0};
  return poll(&polled, 1, 0) == 1;
}

void RemoteProcess::CloseInput() {
  Close(&input_);
}

void RemoteProcess::Signal(int signal) {
  if (pid_ > 0) kill(-pid_, signal);
}

int RemoteProcess::Reap() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
  OwnChildren::Get().Remove(pid_);
  pid_ = 0;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace ddprun::cli
