// Signals as calls: one thread waits for those that stop, those that are passed on, SIGUSR1,
// SIGUSR2, SIGTSTP and SIGCONT, and calls a handler that may do anything, since it is no signal
// handler.
//
// BlockSignals must run before any thread is made, so that all threads have them blocked. A SIGHUP
// that was ignored at the start (nohup) stays ignored, here and in the workers. SIGPIPE is ignored.
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>
#include <vector>

namespace ddprun::cli {

// What torchrun stops at, too.
inline const std::vector<int> kStopSignals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

// `listed`: those that stop or are passed on. Others keep their effect on this process.
void BlockSignals(const std::vector<int>& listed);

// Waits for one of these signals, which are blocked; 0 when none comes in time.
int AwaitSignal(const std::vector<int>& signals, double seconds);

class SignalThread {
 public:
  // `on_tick` (may be null) is called every `tick_seconds` by the same thread.
  explicit SignalThread(std::function<void(int)> on_signal, std::function<void()> on_tick = nullptr,
                        int tick_seconds = 0);
  ~SignalThread();  // no call after this
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  void Run();

  std::function<void(int)> on_signal_;
  std::function<void()> on_tick_;
  int tick_milliseconds_;
  std::chrono::milliseconds one_wish_;
  int signal_fd_;
  int end_fd_;
  std::thread thread_;
};

}  // namespace ddprun::cli
