#include "launcher/cli/job_session.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ddprun::cli {
namespace {

double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

JobSession::JobSession(const std::shared_ptr<grpc::Channel>& channel, View* view,
                       std::vector<int> stop_signals)
    : stub_(v1::CoordinatorService::NewStub(channel)),
      view_(*view),
      stop_signals_(std::move(stop_signals)) {}

JobSession::~JobSession() {
  if (!watcher_.joinable()) return;
  watch_context_.TryCancel();
  watcher_.join();
}

absl::Status JobSession::Submit(const v1::JobSpec& spec) {
  spec_ = spec;
  spec_.clear_environment();
  grpc::ClientContext context;
  v1::SubmitRequest request;
  *request.mutable_spec() = spec;
  v1::SubmitResponse response;
  const grpc::Status status = stub_->Submit(&context, request, &response);
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

void JobSession::StartWatching() {
  watcher_ = std::thread([this] { Watch(); });
}

void JobSession::Watch() {
  v1::WatchRequest request;
  request.set_job_id(spec_.job_id());
  auto reader = stub_->Watch(&watch_context_, request);
  v1::EventRecord record;
  while (reader->Read(&record)) {
    for (absl::string_view line : absl::StrSplit(record.json(), '\n')) Show(std::string(line));
  }
  reader->Finish();
  std::lock_guard pause_lock(pause_mutex_);
  watch_over_ = true;
  pause_changed_.notify_all();
}

void JobSession::Show(const std::string& event) {
  std::lock_guard lock(view_mutex_);
  view_.OnEvent(event, MonotonicSeconds());
  if (event.find("\"event\":\"job_paused\"") == std::string::npos) return;
  std::lock_guard pause_lock(pause_mutex_);
  workers_paused_ = true;
  pause_changed_.notify_all();
}

void JobSession::WaitForLastEvent() {
  if (watcher_.joinable()) watcher_.join();
}

void JobSession::Control(v1::ControlRequest::Action action, int signal) {
  grpc::ClientContext context;
  v1::ControlRequest request;
  request.set_job_id(spec_.job_id());
  request.set_action(action);
  request.set_signal(signal);
  v1::ControlResponse response;
  // Without an answer the coordinator is gone, and with it what could be controlled.
  stub_->Control(&context, request, &response);
}

void JobSession::OnSignal(int signal) {
  const auto listed = [signal](const auto& list) {
    return std::find(list.begin(), list.end(), signal) != list.end();
  };
  if (signal == SIGTSTP) return Pause();
  if (signal == SIGCONT) return Continue();
  if (listed(stop_signals_)) return Stop(signal);
  const std::string name = absl::StrCat("SIG", sigabbrev_np(signal));
  if (!listed(spec_.supervision().forwarded_signals())) {
    return view_.Say(absl::StrCat(name, " is ignored: --forward-signals does not name it"));
  }
  // Our trainer has no use for a signal of its own; a program that uses libddprun is asked in the
  // same way by SIGUSR2.
  const bool trainer = !spec_.train_config_json().empty();
  Control(
      trainer || signal == SIGUSR2 ? v1::ControlRequest::CHECKPOINT : v1::ControlRequest::SIGNAL,
      signal);
}

void JobSession::Stop(int signal) {
  const std::string name = absl::StrCat("SIG", sigabbrev_np(signal));
  if (++stops_ > 1) {
    view_.Say(absl::StrCat(name, " again: killing the workers"));
    return Control(v1::ControlRequest::KILL, signal);
  }
  const bool trainer = !spec_.train_config_json().empty();
  view_.Say(absl::StrCat(name, ": ", trainer ? "saving a checkpoint and stopping" : "stopping",
                         " (at most ", Duration(spec_.grace_seconds()),
                         "; a second one kills at once)"));
  Control(v1::ControlRequest::STOP, signal);
}

void JobSession::Pause() {
  if (stops_ > 0) return view_.Say("Ctrl-Z is ignored: the job is being stopped");
  // With a lease this process has to go on, since agents count on its answers; there a second
  // Ctrl-Z continues.
  const bool stays = spec_.lease_seconds() > 0;
  if (paused_) return stays ? Continue() : void();
  paused_ = true;
  {
    std::lock_guard lock(pause_mutex_);
    workers_paused_ = false;
  }
  Control(v1::ControlRequest::PAUSE, SIGTSTP);
  if (stays) return view_.Say("pausing the workers; a second Ctrl-Z lets them go on");
  AwaitPaused();
  view_.Flush();
  // SIGCONT, which is blocked, is read when this process runs again.
  kill(getpid(), SIGSTOP);
}

void JobSession::Continue() {
  if (!paused_) return;
  paused_ = false;
  Control(v1::ControlRequest::CONTINUE, SIGCONT);
}

void JobSession::AwaitPaused() {
  constexpr std::chrono::seconds kPatience{5};
  std::unique_lock lock(pause_mutex_);
  pause_changed_.wait_for(lock, kPatience, [this] { return workers_paused_ || watch_over_; });
}

void JobSession::OnTick() {
  std::lock_guard lock(view_mutex_);
  view_.SayWhoIsMissing();
}

}  // namespace ddprun::cli
