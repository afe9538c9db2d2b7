#include "launcher/keeper/worker_start.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/keeper/worker_ends.h"

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

namespace ddprun::keeper {
namespace {

// Where the child finds its descriptors; the environment names the same numbers.
constexpr int kSocketFd = 3;
constexpr int kPageFd = 4;
constexpr int kFirstOtherFd = 5;
constexpr int kScratchFdMin =
    8;  // out of the way of 0 … 4 while they are put in place, and under any open-files limit

struct Plan {
  const WorkerSpec* spec = nullptr;
  const StartContext* context = nullptr;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  pid_t keeper = 0;
};

std::vector<char*> ExecVector(const std::vector<const char*>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 3);
  for (const char* text : texts) pointers.push_back(const_cast<char*>(text));
  return pointers;
}

Plan MakePlan(const WorkerSpec& spec, const StartContext& context) {
  Plan plan{&spec, &context, ExecVector(spec.arguments), {}, getpid()};
  plan.arguments.push_back(nullptr);
  for (const char* variable : spec.environment) {
    if (IsKeepersVariable(variable)) continue;
    plan.environment.push_back(const_cast<char*>(variable));
  }
  plan.environment.push_back(const_cast<char*>(kSocketVariable));
  plan.environment.push_back(const_cast<char*>(kPageVariable));
  plan.environment.push_back(nullptr);
  return plan;
}

[[noreturn]] void Fail(int start_pipe, StartStage stage) {
  const StartFailure failure{stage, errno};
  // The pipe is empty and takes one record at once; nobody is left to be told if not.
  if (write(start_pipe, &failure, sizeof failure) < 0) _exit(126);
  _exit(127);
}

int MoveUp(int fd) {
  return fcntl(fd, F_DUPFD_CLOEXEC, kScratchFdMin);
}

// Puts the descriptors at 0 … 4 and marks all others close-on-exec. False: errno says why.
bool ArrangeDescriptors(const ChildEnds& ends, int page_fd) {
  const int null = MoveUp(ends.null.get());
  const int output = MoveUp(ends.output.get());
  const int socket = MoveUp(ends.socket.get());
  const int page = MoveUp(page_fd);
  if (null < 0 || output < 0 || socket < 0 || page < 0) return false;
  if (dup2(null, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0 ||
      dup2(socket, kSocketFd) < 0 || dup2(page, kPageFd) < 0) {
    return false;
  }
  // All of the keeper's own are close-on-exec already; this is the second line, so an old kernel's
  // refusal is no error.
  syscall(SYS_close_range, kFirstOtherFd, ~0U, CLOSE_RANGE_CLOEXEC);
  return true;
}

// Standard error is the worker's log by now: what went wrong stands in front of its output.
void BindToCpus(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t* set = CPU_ALLOC(kCpuMax + 1);
  const size_t bytes = CPU_ALLOC_SIZE(kCpuMax + 1);
  if (set != nullptr) {
    CPU_ZERO_S(bytes, set);
    for (int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
    if (sched_setaffinity(0, bytes, set) == 0) return;
  }
  dprintf(STDERR_FILENO,
          "ddprun-keeper: cannot bind this worker to its CPUs (%d to %d): %s; it runs "
          "unbound\n",
          cpus.front(), cpus.back(), strerror(errno));
}

[[noreturn]] void RunChild(const Plan& plan, const ChildEnds& ends, int page_fd) {
  const int start_pipe = MoveUp(ends.start_pipe.get());
  if (start_pipe < 0) Fail(ends.start_pipe.get(), StartStage::kDescriptors);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.keeper) _exit(126);  // it died before the line above: nobody would kill us
  if (plan.spec->directory != nullptr && chdir(plan.spec->directory) != 0) {
    Fail(start_pipe, StartStage::kDirectory);
  }
  if (!ArrangeDescriptors(ends, page_fd)) Fail(start_pipe, StartStage::kDescriptors);
  BindToCpus(plan.spec->cpus);
  setrlimit(RLIMIT_NOFILE, &plan.context->open_files);
  ResetSignals(plan.context->hangup_ignored);
  environ = const_cast<char**>(plan.environment.data());  // execvp takes PATH from there
  execvp(plan.arguments[0], plan.arguments.data());
  Fail(start_pipe, StartStage::kExec);
}

bool MakePipe(int flags, Fd* read_end, Fd* write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  read_end->Reset(ends[0]);
  write_end->Reset(ends[1]);
  return fcntl(ends[0], F_SETFL, flags) == 0;
}

bool MakeSocket(Fd* keeper_end, Fd* worker_end) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  keeper_end->Reset(ends[0]);
  worker_end->Reset(ends[1]);
  const int on = 1;
  return setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0 &&
         fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
}

}  // namespace

void ResetSignals(bool hangup_ignored) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal == SIGHUP && hangup_ignored) continue;
    sigaction(signal, &action, nullptr);  // KILL, STOP and libc's own cannot be set, and need not
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

bool IsKeepersVariable(const char* variable) {
  const std::string_view text = variable;
  const std::string_view name = text.substr(0, text.find('='));
  return name == "DDPRUN_SOCKET_FD" || name == "DDPRUN_PAGE_FD";
}

bool OpenEnds(const WorkerSpec& spec, const StartContext& context, StartedWorker* worker,
              ChildEnds* ends, StartFailure* failure) {
  const auto fail = [failure](StartStage stage) {
    *failure = {stage, errno};
    return false;
  };
  Fd output;
  LogFile log;
  errno = log.Open(spec.log, context.rotation);
  if (errno != 0) return fail(StartStage::kLog);
  ends->null.Reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!ends->null.valid() || !MakePipe(O_NONBLOCK, &output, &ends->output) ||
      !MakePipe(O_NONBLOCK, &worker->start_pipe, &ends->start_pipe)) {
    return fail(StartStage::kPipe);
  }
  fcntl(output.get(), F_SETPIPE_SZ, context.pipe_bytes);
  if (!MakeSocket(&worker->socket, &ends->socket)) return fail(StartStage::kSocket);
  errno = worker->page.Create();
  if (errno != 0) return fail(StartStage::kPage);
  worker->log = LogPump(std::move(output), std::move(log));
  return true;
}

bool HoldProcess(StartedWorker* worker, StartFailure* failure) {
  // Both sides do it, so that the group is there for either; EACCES after exec.
  setpgid(worker->pid, worker->pid);
  worker->page.CloseFd();
  worker->pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, worker->pid, 0)));
  if (worker->pidfd.valid()) return true;
  *failure = {StartStage::kPidfd, errno};
  kill(worker->pid, SIGKILL);  // it is a child like any orphan from here on, and reaped as one
  return false;
}

bool StartWorker(const WorkerSpec& spec, const StartContext& context, StartedWorker* worker,
                 StartFailure* failure) {
  ChildEnds ends;
  if (!OpenEnds(spec, context, worker, &ends, failure)) return false;
  const Plan plan = MakePlan(spec, context);
  worker->pid = fork();
  if (worker->pid < 0) {
    *failure = {StartStage::kFork, errno};
    return false;
  }
  if (worker->pid == 0) RunChild(plan, ends, worker->page.fd());
  return HoldProcess(worker, failure);
}

}  // namespace ddprun::keeper
