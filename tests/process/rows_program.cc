#include "tests/process/rows_program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tests/process/launch.h"

extern char** environ;

namespace ddprun::testing {
namespace {

namespace fs = std::filesystem;

// The other end of a new terminal; its path in `name`.
int OpenTerminal(std::string* name) {
  const int fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  std::array<char, 128> path = {};
  if (fd < 0 || grantpt(fd) != 0 || unlockpt(fd) != 0 ||
      ptsname_r(fd, path.data(), path.size()) != 0) {
    std::abort();
  }
  *name = path.data();
  return fd;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

ScratchFolder::ScratchFolder() {
  path_ = (fs::temp_directory_path() / "ddprun-rows-XXXXXX").string();
  if (mkdtemp(path_.data()) == nullptr) std::abort();
}
ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Program::Program(std::vector<std::string> command, const std::string& folder, Where where,
                 std::map<std::string, std::string> environment) {
  static int counter = 0;
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!environment.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (where == Where::kTerminal) {
    std::string name;
    terminal_ = OpenTerminal(&name);
    // The first terminal that the leader of a new session opens becomes its own.
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    posix_spawn_file_actions_addopen(&actions, 0, name.c_str(), O_RDWR, 0);
    posix_spawn_file_actions_adddup2(&actions, 0, 1);
  } else {
    output_path_ = folder + "/output-" + std::to_string(++counter);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, output_path_.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0644);
  }
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  const std::vector<char*> argv = Pointers(command);
  const std::vector<char*> envp = Pointers(variables);
  // Signals to pid -1 would go to everybody.
  if (posix_spawn(&pid_, argv[0], &actions, &attributes, argv.data(), envp.data()) != 0) {
    std::fprintf(stderr, "cannot start %s (DDPRUN_BIN is its folder, absolute)\n", argv[0]);
    std::abort();
  }
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
}

Program::~Program() {
  if (pid_ > 0 && code_ < 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (terminal_ >= 0) close(terminal_);
}

std::string Program::Output() {
  if (terminal_ < 0) return output_path_.empty() ? seen_ : ReadText(output_path_);
  std::array<char, 4096> buffer = {};
  for (ssize_t n = 0; (n = read(terminal_, buffer.data(), buffer.size())) > 0;) {
    seen_.append(buffer.data(), static_cast<size_t>(n));
  }
  return seen_;
}

bool Program::Says(const std::string& text, double seconds) {
  return WaitUntil([&] { return Output().find(text) != std::string::npos; }, seconds);
}

std::string Program::LineBehind(const std::string& marker, double seconds) {
  std::string line;
  WaitUntil(
      [&] {
        const std::string text = Output();
        const size_t at = text.find(marker);
        const size_t end = at == std::string::npos ? at : text.find_first_of("\r\n", at);
        if (end == std::string::npos) return false;
        line = text.substr(at + marker.size(), end - at - marker.size());
        return true;
      },
      seconds);
  return line;
}

void Program::Type(char key) {
  if (write(terminal_, &key, 1) != 1) std::abort();
}

void Program::CloseTerminal() {
  close(terminal_);
  terminal_ = -1;
}

void Program::Signal(int signal) {
  kill(pid_, signal);
}

int Program::Wait(double seconds) {
  if (code_ >= 0) return code_;
  WaitUntil(
      [&] {
        Output();  // a terminal that nobody reads would hold it up
        int status = 0;
        if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
        code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        return true;
      },
      seconds);
  return code_;
}

}  // namespace ddprun::testing
