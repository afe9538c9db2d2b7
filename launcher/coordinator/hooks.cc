#include "launcher/coordinator/hooks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/mailbox.h"
#include "common/own_children.h"
#include "launcher/coordinator/root_cause.h"
#include "launcher/coordinator/run_folder.h"

extern char** environ;

namespace ddprun::coordinator {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kHookTime(60);
constexpr int kHooksWaitingMax = 8;
constexpr int kFirstForeignFd = 3;

std::vector<std::string> Environment(const Hook& hook) {
  std::vector<std::string> variables = {"DDPRUN_REPORT=" + hook.report_path};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (name != "DDPRUN_REPORT" && !hook.environment.contains(name)) variables.push_back(text);
  }
  for (const auto& [name, value] : hook.environment) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  return variables;
}

// A process group of its own, no signal blocked or ignored, no descriptor of ours.
int Spawn(const Hook& hook, pid_t* pid) {
  std::vector<std::string> variables = Environment(hook);
  std::vector<char*> envp;
  envp.reserve(variables.size() + 1);
  for (auto& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  std::string shell = "/bin/sh", dash_c = "-c", command = hook.command;
  char* argv[] = {shell.data(), dash_c.data(), command.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, hook.report_path.c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, hook.log_path.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawn_file_actions_addclosefrom_np(&actions, kFirstForeignFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const int error = posix_spawn(pid, argv[0], &actions, &attributes, argv, envp.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

// Until it has ended (not reaped yet) or the deadline passes.
bool WaitForEnd(pid_t pid, Clock::time_point deadline) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return true;  // no such process: it cannot be waited for either
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready = {fd, POLLIN, 0};
    const int got = poll(&ready, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (got < 0 && errno == EINTR) continue;
    close(fd);
    return got > 0;
  }
}

// "" when it ended with 0.
std::string RunToEnd(const Hook& hook, Clock::time_point deadline) {
  pid_t pid = 0;
  int error = 0;
  OwnChildren::Get().Add([&] {
    error = Spawn(hook, &pid);
    return error == 0 ? pid : 0;
  });
  if (error != 0) return absl::StrCat("cannot start /bin/sh: ", std::strerror(error));
  const bool ended = WaitForEnd(pid, deadline);
  // Its group lives as long as it is not reaped, so that no other one can have this number.
  kill(-pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  OwnChildren::Get().Remove(pid);
  if (!ended)
    return absl::StrCat("it ran for longer than ", kHookTime.count(), " s and was killed");
  if (WIFSIGNALED(status)) return absl::StrCat("it was killed by ", SignalName(WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) {
    return absl::StrCat("it exited with code ", WEXITSTATUS(status), " (its output is in ",
                        hook.log_path, ")");
  }
  return "";
}

std::string Perform(const Hook& hook, Clock::time_point deadline) {
  if (hook.command.empty()) return "";
  if (!hook.report.is_null()) {
    absl::Status status = RunFolder::WriteReport(hook.report_path, hook.report);
    if (!status.ok()) return std::string(status.message());
  }
  absl::Status made = PosixFileSystem().MakeDirectories(ParentPath(hook.log_path));
  if (!made.ok()) return std::string(made.message());
  return RunToEnd(hook, deadline);
}

}  // namespace

class HookRunner::Impl {
 public:
  explicit Impl(std::function<void(HookEnded)> ended) : ended_(std::move(ended)) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~Impl() {
    hooks_.Close();
    thread_.join();
  }

  void Run(Hook hook, bool last) {
    if (!last && waiting_ >= kHooksWaitingMax) {
      return ended_({hook.name, hook.generation, false,
                     absl::StrCat("left out: ", kHooksWaitingMax, " earlier ones wait already")});
    }
    ++waiting_;
    if (last) Hurry();
    hooks_.Post({std::move(hook), last});
  }

 private:
  struct Entry {
    Hook hook;
    bool last = false;
  };

  void Hurry() { cutoff_ns_ = (Clock::now() + kHookTime).time_since_epoch().count(); }

  void Loop() {
    while (std::optional<Entry> entry = hooks_.Take(std::nullopt)) {
      auto deadline = Clock::now() + kHookTime;
      const int64_t cutoff_ns = cutoff_ns_;
      bool late = false;
      if (!entry->last && cutoff_ns != 0) {
        const Clock::time_point cutoff{Clock::duration(cutoff_ns)};
        deadline = std::min(deadline, cutoff);
        late = Clock::now() >= cutoff;
      }
      const std::string reason =
          late ? "left out: the job is over" : Perform(entry->hook, deadline);
      --waiting_;
      ended_({entry->hook.name, entry->hook.generation, reason.empty(), reason});
    }
  }

  std::function<void(HookEnded)> ended_;
  Mailbox<Entry> hooks_;
  std::atomic<int> waiting_{0};
  std::atomic<int64_t> cutoff_ns_{0};  // of those before the last one; 0: none
  std::thread thread_;
};

HookRunner::HookRunner(std::function<void(HookEnded)> ended)
    : impl_(std::make_unique<Impl>(std::move(ended))) {}
HookRunner::~HookRunner() = default;

void HookRunner::Run(Hook hook) {
  impl_->Run(std::move(hook), false);
}
void HookRunner::RunLast(Hook hook) {
  impl_->Run(std::move(hook), true);
}

}  // namespace ddprun::coordinator
