// JobSession: one job as its command line sees it: submitted, watched, controlled. Talks to the
// coordinator over a channel only, so that a coordinator elsewhere would do as well.
//
// Threads: Control from any thread; the rest from the thread that made it. The view is called from
// the watching thread and from OnTick, one at a time.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "ddprun/v1/coordinator.grpc.pb.h"
#include "launcher/cli/view.h"

namespace ddprun::cli {

class JobSession {
 public:
  // `stop_signals`: those that end the job.
  JobSession(const std::shared_ptr<grpc::Channel>& channel, View* view,
             std::vector<int> stop_signals);
  ~JobSession();

  absl::Status Submit(const v1::JobSpec& spec);
  // Shows the job's events from the first on, until it is over.
  void StartWatching();
  // Waits until all events have been shown.
  void WaitForLastEvent();
  // A signal to ddprun.
  void OnSignal(int signal);
  void OnTick();
  void Control(v1::ControlRequest::Action action, int signal);
  bool was_signalled() const { return stops_ > 0; }

 private:
  void Watch();
  void Show(const std::string& event);
  void Stop(int signal);
  // Ctrl-Z and fg.
  void Pause();
  void Continue();
  // Waits until the workers stand still, or the job is over, for a bounded time.
  void AwaitPaused();

  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
  View& view_;
  std::mutex view_mutex_;
  v1::JobSpec spec_;
  std::vector<int> stop_signals_;
  int stops_ = 0;        // of the signal thread
  bool paused_ = false;  // likewise
  std::mutex pause_mutex_;
  std::condition_variable pause_changed_;
  bool workers_paused_ = false;
  bool watch_over_ = false;
  grpc::ClientContext watch_context_;
  std::thread watcher_;
};

}  // namespace ddprun::cli
