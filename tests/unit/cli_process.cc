#include "tests/unit/cli_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>

namespace ddprun::cli {
namespace {

constexpr int kDeadlineMilliseconds = 60000;

std::string ReadFrom(int fd) {
  std::string text(static_cast<size_t>(lseek(fd, 0, SEEK_END)), '\0');
  const ssize_t bytes = pread(fd, text.data(), text.size(), 0);
  text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return text;
}

}  // namespace

Ended RunToEnd(const std::vector<std::string>& command, const std::string& working_dir,
               const std::vector<std::string>& environment) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const int output = memfd_create("output", MFD_CLOEXEC);
  const int error = memfd_create("error", MFD_CLOEXEC);
  const auto start = std::chrono::steady_clock::now();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(output, 1);
    dup2(error, 2);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
    if (chdir(working_dir.c_str()) == 0) execv(argv[0], argv.data());
    _exit(126);
  }
  const int pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  pollfd polled = {pid_fd, POLLIN, 0};
  if (poll(&polled, 1, kDeadlineMilliseconds) != 1) {
    ADD_FAILURE() << command[0] << " did not end in time";
    kill(pid, SIGKILL);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  Ended ended;
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ended.output = ReadFrom(output);
  ended.error = ReadFrom(error);
  close(pid_fd);
  close(output);
  close(error);
  return ended;
}

Running::Running(const std::vector<std::string>& command, const std::string& working_dir,
                 int ignored_signal) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) ADD_FAILURE() << "no pipe";
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(fds[1], 1);
    dup2(fds[1], 2);
    if (ignored_signal != 0) signal(ignored_signal, SIG_IGN);
    if (chdir(working_dir.c_str()) == 0) execv(argv[0], argv.data());
    _exit(126);
  }
  close(fds[1]);
  fd_ = fds[0];
}

Running::~Running() {
  if (!ended_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(fd_);
}

bool Running::ReadSome() {
  pollfd polled = {fd_, POLLIN, 0};
  if (poll(&polled, 1, kDeadlineMilliseconds) != 1) {
    ADD_FAILURE() << "nothing came in time, after: " << all_;
    return false;
  }
  char buffer[4096];
  const ssize_t bytes = read(fd_, buffer, sizeof buffer);
  if (bytes <= 0) return false;
  all_.append(buffer, static_cast<size_t>(bytes));
  return true;
}

std::string Running::WaitFor(const std::string& text, int times) {
  const auto count = [&] {
    int found = 0;
    for (size_t at = all_.find(text); at != std::string::npos; at = all_.find(text, at + 1))
      ++found;
    return found;
  };
  while (count() < times) {
    if (ReadSome()) continue;
    ADD_FAILURE() << "it ended before it wrote \"" << text << "\", after: " << all_;
    break;
  }
  return all_;
}

void Running::Signal(int number) {
  kill(pid_, number);
}

int Running::WaitForEnd(std::string* rest) {
  while (ReadSome()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  ended_ = true;
  if (rest != nullptr) *rest = all_;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string DdprunPath() {
  const char* folder = getenv("DDPRUN_BIN");
  return std::string(folder != nullptr ? folder : "build/bin") + "/ddprun";
}

}  // namespace ddprun::cli
