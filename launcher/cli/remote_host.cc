#include "launcher/cli/remote_host.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/commands.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

// A host that is busy with other logins is asked again at once, before it counts as missing.
constexpr int kBusyTriesMax = 3;
constexpr std::chrono::seconds kBusyPause{1};
// How long after an agent's end it is clear whether the job has ended.
constexpr std::chrono::seconds kSettle{1};
// An agent that lived so long was no failure in a row with those before.
constexpr std::chrono::seconds kHealthy{60};
constexpr size_t kPrefixBytesMax = 256;
constexpr size_t kReadsAtOnceMax = 16;
constexpr size_t kReadsAtEndMax = 256;  // more than the pipes of a dead process hold
// Somebody has taken the host out of the job by hand, with Ctrl-C's signal.
constexpr int kLeftForGood = 128 + SIGINT;
// Of ssh itself: a broken connection, or a program that was killed at the other end.
constexpr int kSshLost = 255;

RemoteClock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<RemoteClock::duration>(std::chrono::duration<double>(seconds));
}

// Whatever a host sends must not move the terminal's cursor.
std::string Printable(std::string_view line) {
  return net::Shown(absl::string_view(line.data(), line.size()));
}

}  // namespace

bool RemoteWords::MayShow(RemoteClock::time_point now, uint64_t* dropped) {
  if (now - window_ >= std::chrono::seconds(1)) {
    window_ = now;
    in_window_ = 0;
  }
  if (in_window_ >= kLinesASecond) {
    ++dropped_;
    return false;
  }
  ++in_window_;
  *dropped = std::exchange(dropped_, 0);
  return true;
}

RemoteHostState::RemoteHostState(RemoteHost host, const RemoteAgentsOptions& options)
    : host_(std::move(host)), options_(options) {}

void RemoteHostState::Start(RemoteClock::time_point now) {
  std::vector<std::string> argv = {options_.place.ddprun};
  if (host_.here) {
    argv.insert(argv.end(), host_.arguments.begin(), host_.arguments.end());
  } else {
    argv = SshCommand(options_.place, host_.entry.target,
                      RemoteCommand(options_.place, host_.arguments));
  }
  output_.emplace(Console::kLineBytesMax + kPrefixBytesMax);
  words_.emplace();
  timed_out_ = false;
  mark_ = host_.here ? StartMark::kAgent : StartMark::kNone;
  started_ = now;
  auto process = RemoteProcess::Start(argv, options_.environment, options_.secret + "\n");
  if (!process.ok()) {
    GiveUpAtFirst(absl::StrCat("host ", host_.entry.target, ": ", process.status().message()),
                  /*passing=*/true, now);
    return;
  }
  process_ = *std::move(process);
  state_ = host_.here ? State::kRunning : State::kStarting;
  due_ = now + std::chrono::seconds(kStartSecondsMax);
}

void RemoteHostState::Pump(RemoteClock::time_point now) {
  if (process_ == nullptr) return;
  // Whether it has ended is asked first: what it wrote is in the pipes then.
  const bool ended = process_->HasEnded();
  // All that is there when it has ended; otherwise the others get their turn, too.
  for (size_t i = 0; i < (ended ? kReadsAtEndMax : kReadsAtOnceMax); ++i) {
    const std::string error = process_->ReadError();
    TakeError(error, now);
    const std::string output = process_->ReadOutput();
    TakeOutput(output);
    if (error.empty() && output.empty()) break;
  }
  if (!ended) return;
  TakeError(absl::StrCat(words_->TakePartial(), "\n"), now);
  const std::string rest = output_->TakePartial();
  if (!rest.empty() && mark_ == StartMark::kAgent) options_.console->WorkerLine(rest);
  const int code = process_->Reap();
  process_.reset();
  OnEnd(code, now);
}

void RemoteHostState::TakeOutput(std::string_view bytes) {
  output_->Feed(bytes, [this](std::string_view line, LineSplitter::End) {
    if (mark_ == StartMark::kAgent) {
      options_.console->WorkerLine(line);
    } else {
      words_->Keep(Printable(line));  // of the host's shell
    }
  });
}

void RemoteHostState::TakeError(std::string_view bytes, RemoteClock::time_point now) {
  words_->Feed(bytes, [&](std::string_view line) {
    const std::optional<StartMark> mark = MarkIn({line.data(), line.size()});
    if (mark && mark_ == StartMark::kNone) {
      mark_ = *mark;
      if (mark_ == StartMark::kAgent) {
        state_ = State::kRunning;
        failed_at_first_ = false;
      }
      return;
    }
    if (mark == StartMark::kJobOver) {
      job_over_ = true;
      return;
    }
    std::string shown = Printable(line);
    if (mark_ == StartMark::kAgent) Show(shown, now);
    words_->Keep(std::move(shown));
  });
}

void RemoteHostState::Show(const std::string& line, RemoteClock::time_point now) {
  uint64_t dropped = 0;
  if (!words_->MayShow(now, &dropped)) return;
  if (dropped > 0) Say(absl::StrCat(dropped, " more lines of it are not shown"));
  const std::string own = "ddprun: ";
  Say(line.starts_with(own) ? line.substr(own.size()) : line);
}

void RemoteHostState::Say(const std::string& line) {
  options_.console->Say(absl::StrCat("ddprun: host ", host_.entry.target, ": ", line));
}

void RemoteHostState::TimePassed(RemoteClock::time_point now) {
  switch (state_) {
    case State::kStarting:
      timed_out_ = true;
      due_ = RemoteClock::time_point::max();
      process_->Signal(SIGKILL);
      return;
    case State::kEnding:
      return OnAgentEnd(now);
    case State::kWaiting:  // whoever counts those that start at once starts it
    case State::kRunning:
    case State::kOver:
      return;
  }
}

void RemoteHostState::ExpectEnd() {
  job_over_ = true;
  if (process_ == nullptr) state_ = State::kOver;
}

void RemoteHostState::OnEnd(int code, RemoteClock::time_point now) {
  exit_code_ = code;
  if (job_over_) {
    state_ = State::kOver;
  } else if (mark_ == StartMark::kAgent) {
    state_ = State::kEnding;
    due_ = now + kSettle;
  } else {
    OnFailedStart(code, now);
  }
}

void RemoteHostState::OnFailedStart(int code, RemoteClock::time_point now) {
  const StartFailure failure =
      Explain({mark_, timed_out_, code, words_->Lines()}, options_.place, host_.entry);
  if (failure.busy && busy_tries_ < kBusyTriesMax) {
    ++busy_tries_;
    state_ = State::kWaiting;
    due_ = now + kBusyPause;
    return;
  }
  GiveUpAtFirst(failure.text, failure.passing, now);
}

void RemoteHostState::GiveUpAtFirst(const std::string& why, bool passing,
                                    RemoteClock::time_point now) {
  if (why != told_) options_.console->Say(absl::StrCat("ddprun: ", why));
  told_ = why;
  failed_at_first_ = failed_at_first_ || !came_;
  if (!came_ && !passing) {
    state_ = State::kOver;
    return;
  }
  TryAgain(now);
}

void RemoteHostState::OnAgentEnd(RemoteClock::time_point now) {
  const std::string last = words_->Last();
  const std::string said = last.empty() ? "" : absl::StrCat(" (", last, ")");
  if (exit_code_ == kLeftForGood) {
    Say("its agent was ended by SIGINT; the host is not tried again");
    failed_at_first_ = failed_at_first_ || !came_;
    state_ = State::kOver;
    return;
  }
  // It never took part: refused, or the coordinator could not be reached from there.
  if (!came_ && (exit_code_ == kExitBadUsage || exit_code_ == kExitNodesMissing)) {
    return GiveUpAtFirst(
        absl::StrCat("host ", host_.entry.target, ": its agent could not join", said),
        exit_code_ == kExitNodesMissing, now);
  }
  came_ = true;
  told_.clear();
  if (now - started_ > kHealthy) failures_ = 0;
  const std::string what = exit_code_ == kSshLost && !host_.here
                               ? std::string("the agent there, or the connection to it, is lost")
                               : absl::StrCat("its agent has ended with code ", exit_code_);
  Say(absl::StrCat(what, said, "; it is started again in ", BackOffSeconds(failures_ + 1), " s"));
  TryAgain(now);
}

void RemoteHostState::TryAgain(RemoteClock::time_point now) {
  busy_tries_ = 0;
  state_ = State::kWaiting;
  due_ = now + Seconds(BackOffSeconds(++failures_));
}

}  // namespace ddprun::cli
