#include "launcher/agent/tool.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

extern char** environ;

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

// The child of its own process group, with no signal blocked and standard input from /dev/null.
// 0: it could not be started.
pid_t SpawnTool(const std::vector<std::string>& arguments, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_adddup2(&actions, output, 2);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error == 0 ? pid : 0;
}

// Reads until the end of file (true) or the limit (false). What does not fit is read and dropped,
// so that the program does not wait for us.
bool ReadAll(int fd, int stop_fd, Clock::time_point limit, size_t bytes_max, std::string* output) {
  std::array<char, 4096> buffer;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now());
    if (left.count() <= 0) return false;
    std::array<pollfd, 2> polled = {{{fd, POLLIN, 0}, {stop_fd, POLLIN, 0}}};
    poll(polled.data(), polled.size(), static_cast<int>(left.count()) + 1);
    if (polled[1].revents != 0) return false;
    if (polled[0].revents == 0) continue;
    const ssize_t size = read(fd, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return true;
    const size_t room = bytes_max - std::min(bytes_max, output->size());
    output->append(buffer.data(), std::min(room, static_cast<size_t>(size)));
  }
}

}  // namespace

ToolRun RunTool(const std::vector<std::string>& arguments, Clock::time_point limit,
                size_t output_bytes_max, int stop_fd) {
  ToolRun run;
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return run;
  const pid_t pid = SpawnTool(arguments, ends[1]);
  close(ends[1]);
  if (pid != 0) {
    const bool ended = ReadAll(ends[0], stop_fd, limit, output_bytes_max, &run.output);
    // Also after its end of file: it may have closed its output and live on, or left children.
    kill(-pid, SIGKILL);
    int status = 0;
    pid_t reaped = 0;
    while ((reaped = waitpid(pid, &status, 0)) < 0 && errno == EINTR) continue;
    run.end = ended ? ToolRun::End::kExited : ToolRun::End::kTimedOut;
    if (reaped == pid) {
      run.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
  }
  close(ends[0]);
  return run;
}

}  // namespace ddprun::agent
