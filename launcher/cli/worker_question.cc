#include "launcher/cli/worker_question.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/errors.h"
#include "launcher/cli/remote_process.h"

namespace ddprun::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSilentSeconds = 5;          // then a line says what is waited for
constexpr size_t kOutputBytesMax = 16 << 20;  // a plan is some kilobytes
constexpr size_t kErrorBytesMax = 64 << 10;   // the end is kept
constexpr uint32_t kThreadsMax = 8;

std::vector<std::string> EnvironmentOf(const WorkerQuestion& question, const Surroundings& here) {
  std::map<std::string, std::string> variables = here.environment;
  variables["DDPRUN_TRAIN_CONFIG"] = question.config_json;
  variables["DDPRUN_DEVICE"] = "cpu";
  variables.try_emplace("OMP_NUM_THREADS", absl::StrCat(std::min(here.cores, kThreadsMax)));
  std::vector<std::string> list;
  list.reserve(variables.size());
  for (const auto& [name, value] : variables) list.push_back(absl::StrCat(name, "=", value));
  return list;
}

// The last line that says anything.
std::string LastLine(const std::string& text) {
  std::string last;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) last = std::string(line);
  }
  return std::string(absl::StripPrefix(last, "ddp-worker: "));
}

class SignalFd {
 public:
  explicit SignalFd(const std::vector<int>& signals) {
    sigset_t set, blocked;
    sigemptyset(&set);
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    for (int signal : signals) {
      if (sigismember(&blocked, signal) == 1) sigaddset(&set, signal);
    }
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~SignalFd() {
    if (fd_ >= 0) close(fd_);
  }
  SignalFd(const SignalFd&) = delete;
  SignalFd& operator=(const SignalFd&) = delete;
  int fd() const { return fd_; }
  // 0: none came.
  int Read() const {
    signalfd_siginfo info = {};
    return read(fd_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  int fd_ = -1;
};

// What came of both streams; the beginning of one and the end of the other are kept.
void Drain(RemoteProcess& process, WorkerAnswer* answer) {
  for (std::string some = process.ReadOutput(); !some.empty(); some = process.ReadOutput()) {
    const size_t room = kOutputBytesMax - std::min(kOutputBytesMax, answer->output.size());
    answer->output.append(some, 0, room);
  }
  for (std::string some = process.ReadError(); !some.empty(); some = process.ReadError()) {
    answer->error += some;
    if (answer->error.size() > kErrorBytesMax) {
      answer->error.erase(0, answer->error.size() - kErrorBytesMax);
    }
  }
}

int MillisecondsUntil(Clock::time_point when) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(when - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count() + 1, 0, 1 << 30));
}

}  // namespace

absl::StatusOr<WorkerAnswer> AskWorker(const WorkerQuestion& question, const Surroundings& here) {
  const auto start = Clock::now();
  const auto after = [start](double seconds) {
    return start +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  const SignalFd signals(question.stop_signals);
  const std::string worker = JoinPath(here.binary_folder, "ddp-worker");
  std::vector<std::string> command = {worker};
  command.insert(command.end(), question.arguments.begin(), question.arguments.end());
  auto started = RemoteProcess::Start(command, EnvironmentOf(question, here), "");
  if (!started.ok()) return started.status();
  RemoteProcess& process = **started;
  process.CloseInput();
  WorkerAnswer answer;
  bool said = false;
  while (!process.HasEnded()) {
    const Clock::time_point wake = after(said ? question.seconds_max : kSilentSeconds);
    std::array<pollfd, 4> polled = {{{process.end_fd(), POLLIN, 0},
                                     {process.output_fd(), POLLIN, 0},
                                     {process.error_fd(), POLLIN, 0},
                                     {signals.fd(), POLLIN, 0}}};
    poll(polled.data(), polled.size(), MillisecondsUntil(wake));
    Drain(process, &answer);
    answer.signal = signals.Read();
    if (answer.signal != 0) {
      answer.end = WorkerAnswer::End::kStopped;
      return answer;
    }
    if (Clock::now() < wake) continue;
    if (said) {
      answer.end = WorkerAnswer::End::kTimedOut;
      return answer;
    }
    said = true;
    PrintError(absl::StrCat("still ", question.what, " (Ctrl-C stops)"));
  }
  Drain(process, &answer);
  answer.exit_code = process.Reap();
  answer.error = LastLine(answer.error);
  return answer;
}

int ExitCodeOf(const absl::StatusOr<WorkerAnswer>& answer, const WorkerQuestion& question) {
  if (!answer.ok()) {
    PrintError(answer.status());
    return kExitInternal;
  }
  if (answer->end == WorkerAnswer::End::kStopped) return 128 + answer->signal;
  if (answer->end == WorkerAnswer::End::kTimedOut) {
    PrintError(absl::StrCat(question.what, " took longer than ", question.seconds_max,
                            " s, and is left out"));
    return 0;
  }
  if (answer->exit_code == 0) return 0;
  if (answer->exit_code == kExitBadUsage && !answer->error.empty()) {
    PrintError(WithPlace(answer->error, question.places));
    return kExitBadUsage;
  }
  constexpr int kKilled = 128 + SIGKILL;
  PrintError(absl::StrCat("ddp-worker ", question.arguments[0], " ended with code ",
                          answer->exit_code,
                          answer->exit_code == kKilled ? " (killed; did memory run out?)" : "",
                          answer->error.empty() ? "" : ": ", answer->error));
  return kExitInternal;
}

int CheckByWorker(const RunPlan& plan, const Surroundings& here,
                  const std::vector<int>& stop_signals) {
  if (plan.ranks_to_check == 0) return 0;
  WorkerQuestion question;
  question.arguments = {plan.has_checkpoint ? "--check-resumed" : "--check",
                        absl::StrCat(plan.ranks_to_check)};
  question.what = "checking data and model before anything is started";
  question.config_json = plan.spec.train_config_json();
  question.places = plan.key_places;
  question.stop_signals = stop_signals;
  return ExitCodeOf(AskWorker(question, here), question);
}

}  // namespace ddprun::cli
