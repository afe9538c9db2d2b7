#include "launcher/cli/job_session.h"

#include <chrono>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ddprun::cli {
namespace {

double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

JobSession::JobSession(const std::shared_ptr<grpc::Channel>& channel, View* view)
    : stub_(v1::CoordinatorService::NewStub(channel)), view_(*view) {}

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
    std::lock_guard lock(view_mutex_);
    view_.OnEvent(record.json(), MonotonicSeconds());
  }
  reader->Finish();
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
  if (signal == SIGUSR2) return Control(v1::ControlRequest::CHECKPOINT, signal);
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

void JobSession::OnTick() {
  std::lock_guard lock(view_mutex_);
  view_.SayWhoIsMissing();
}

}  // namespace ddprun::cli
