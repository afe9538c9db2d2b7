#include "launcher/cli/doctor_session.h"

#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "launcher/cli/doctor_answer.h"
#include "launcher/cli/doctor_finding.h"
#include "launcher/net/text.h"

extern char** environ;

namespace ddprun::doctor {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLeaveMilliseconds = 1000;
constexpr size_t kLastWordsMax = 300;

// In a process group of its own, so that all of it can be killed (ssh starts helpers).
int Spawn(const std::vector<std::string>& command, int socket, int error_file, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, socket, 0);
  posix_spawn_file_actions_adddup2(&actions, socket, 1);
  posix_spawn_file_actions_adddup2(&actions, error_file, 2);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const int error = posix_spawnp(pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Start(const std::vector<std::string>& command) {
  std::array<int, 2> ends = {-1, -1};
  const int error_file = memfd_create("doctor", MFD_CLOEXEC);
  if (error_file < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    if (error_file >= 0) close(error_file);
    return absl::InternalError(absl::StrCat("no socket: ", strerror(errno)));
  }
  pid_t pid = 0;
  const int error = Spawn(command, ends[1], error_file, &pid);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    close(error_file);
    return absl::UnavailableError(absl::StrCat(command[0], ": ", strerror(error)));
  }
  return std::unique_ptr<Session>(new Session(pid, ends[0], error_file));
}

Session::Session(pid_t pid, int socket, int error_file)
    : pid_(pid), socket_(socket), error_file_(error_file), lines_(socket, kAnswerBytesMax) {}

Session::~Session() {
  close(socket_);
  const int pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  pollfd polled = {pid_fd, POLLIN, 0};
  if (pid_fd >= 0) poll(&polled, 1, kLeaveMilliseconds);
  kill(-pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  if (pid_fd >= 0) close(pid_fd);
  close(error_file_);
}

std::string Session::LastWords() const {
  std::array<char, 4096> text = {};
  const ssize_t size = pread(error_file_, text.data(), text.size(), 0);
  const absl::string_view all = absl::StripAsciiWhitespace(
      absl::string_view(text.data(), size > 0 ? static_cast<size_t>(size) : 0));
  const size_t line = all.rfind('\n');
  const absl::string_view last = line == absl::string_view::npos ? all : all.substr(line + 1);
  return net::Shown(last, kLastWordsMax);
}

absl::StatusOr<Json> Session::Ask(const Json& question,
                                  std::chrono::steady_clock::time_point deadline) {
  const std::string text = question.dump() + "\n";
  std::optional<std::string> line;
  // A question fits into an empty socket's buffer.
  if (send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size())) {
    line = lines_.Next(deadline);
  }
  if (!line) {
    const bool late = std::chrono::steady_clock::now() >= deadline;
    const std::string words = LastWords();
    return absl::UnavailableError(
        absl::StrCat(late ? "no answer in time" : "it ended", words.empty() ? "" : ": ", words));
  }
  Json answer = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) {
    return absl::UnavailableError(absl::StrCat("it said: ", net::Shown(*line, kLastWordsMax)));
  }
  return answer;
}

}  // namespace ddprun::doctor
