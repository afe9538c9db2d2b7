// RemoteHostState: one host of --hosts, as the thread of RemoteAgents sees it: what runs there,
// what it has said, when it is tried again. Threads: one.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/remote_agents.h"
#include "launcher/cli/remote_process.h"
#include "launcher/console/line_splitter.h"

namespace ddprun::cli {

using RemoteClock = std::chrono::steady_clock;

// Lines of standard error: the last ones are kept to explain a failure, and so many are shown in a
// second.
class RemoteWords {
 public:
  static constexpr size_t kLinesKept = 20;
  static constexpr size_t kLineBytesMax = 2048;
  static constexpr int kLinesASecond = 20;

  RemoteWords() : splitter_(kLineBytesMax) {}
  // Calls take(line) for each whole line, fit to be shown.
  template <typename Take>
  void Feed(std::string_view bytes, Take take) {
    splitter_.Feed(bytes, [&](std::string_view line, LineSplitter::End) {
      if (!line.empty()) take(line);
    });
  }
  void Keep(std::string line) {
    lines_.push_back(std::move(line));
    if (lines_.size() > kLinesKept) lines_.pop_front();
  }
  std::vector<std::string> Lines() const { return {lines_.begin(), lines_.end()}; }
  std::string Last() const { return lines_.empty() ? "" : lines_.back(); }
  std::string TakePartial() { return splitter_.TakePartial(); }
  // Whether one more may be shown now; *dropped: how many were not since the last that was.
  bool MayShow(RemoteClock::time_point now, uint64_t* dropped);

 private:
  LineSplitter splitter_;
  std::deque<std::string> lines_;
  RemoteClock::time_point window_;
  int in_window_ = 0;
  uint64_t dropped_ = 0;
};

class RemoteHostState {
 public:
  enum class State {
    kWaiting,   // for its turn, or for the end of a pause
    kStarting,  // ssh runs; the agent does not yet
    kRunning,
    kEnding,  // the agent has ended; a moment later it is known whether the job has, too
    kOver,    // not tried again
  };

  RemoteHostState(RemoteHost host, const RemoteAgentsOptions& options);

  State state() const { return state_; }
  const RemoteHost& host() const { return host_; }
  RemoteProcess* process() { return process_.get(); }
  RemoteClock::time_point due() const { return due_; }
  bool failed_at_first() const { return failed_at_first_; }

  void Start(RemoteClock::time_point now);
  // What the process has written, and its end.
  void Pump(RemoteClock::time_point now);
  // due() has come.
  void TimePassed(RemoteClock::time_point now);
  // Whatever ends from here on was meant to.
  void ExpectEnd();

 private:
  void TakeOutput(std::string_view bytes);
  void TakeError(std::string_view bytes, RemoteClock::time_point now);
  void Show(const std::string& line, RemoteClock::time_point now);
  void Say(const std::string& line);
  void OnEnd(int code, RemoteClock::time_point now);
  void OnFailedStart(int code, RemoteClock::time_point now);
  void OnAgentEnd(RemoteClock::time_point now);
  void TryAgain(RemoteClock::time_point now);
  void GiveUpAtFirst(const std::string& why, bool passing, RemoteClock::time_point now);

  const RemoteHost host_;
  const RemoteAgentsOptions& options_;
  State state_ = State::kWaiting;
  RemoteClock::time_point due_;
  std::unique_ptr<RemoteProcess> process_;
  RemoteClock::time_point started_;
  std::optional<LineSplitter> output_;
  std::optional<RemoteWords> words_;
  StartMark mark_ = StartMark::kNone;
  bool timed_out_ = false;
  int exit_code_ = 0;
  bool came_ = false;  // an agent has worked there
  bool failed_at_first_ = false;
  int busy_tries_ = 0;
  int failures_ = 0;  // in a row
  std::string told_;  // the last failure that was told
  bool job_over_ = false;
};

}  // namespace ddprun::cli
