// Worker: one worker of the spec while the keeper watches it: its descriptors, queues and counters.
// A passive object: it reads, pumps and sends when the keeper's loop says so, and decides nothing.
//
// Threads: the keeper's alone.
// Life: Start → (Started | StartFailed is told) → packets and output → TellExit. The log pipe may
// outlive the process, since its descendants hold it too.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <string>

#include "common/packet.h"
#include "launcher/keeper/agent_link.h"
#include "launcher/keeper/packet_budget.h"
#include "launcher/keeper/packet_queue.h"
#include "launcher/keeper/poller.h"
#include "launcher/keeper/preloader.h"
#include "launcher/keeper/spec.h"
#include "launcher/keeper/worker_start.h"

namespace ddprun::keeper {

inline constexpr size_t kWorkerQueueBytesMax = size_t{1} << 20;

class Worker {
 public:
  // REQUIRES: *poller is open and outlives this. `index`: under which it tells of this worker.
  Worker(const WorkerSpec* spec, size_t index, Poller* poller)
      : spec_(spec), index_(index), poller_(poller) {}

  // False: it could not be started, the agent has been told, and it counts as ended.
  bool Start(const StartContext& context, AgentLink* agent);
  // The same by a preloader, in steps for all workers together: ask, wait for its process, let it
  // go and watch it. False: nobody has been told anything; after Forget it may be started afresh.
  bool Ask(const StartContext& context, const Preloader& preloader);
  bool AwaitPreloaded(int64_t deadline_boot_ns);
  void Go();
  void Watch();
  void Forget();
  // Tells Started or StartFailed once it is known; time_ns: when it was noticed.
  void ReadStartPipe(AgentLink* agent, int64_t time_ns);
  // Passes on at most `packets_max` packets. True: one of them was its Hello.
  bool ReadPackets(AgentLink* agent, int packets_max);
  // Copies at most `bytes_max` of output to log and console.
  void PumpLog(AgentLink* agent, size_t bytes_max);
  // All that lies in the pipe now, and not what others go on writing.
  void DrainLog(AgentLink* agent) { PumpLog(agent, process_.log.BytesWaiting()); }
  // REQUIRES: its pidfd is readable. Reaps it and tells Exited (not for one whose StartFailed was
  // told).
  void ReapAndTell(AgentLink* agent, int64_t time_ns);
  // At the end of everything: the last output, and what was lost.
  void CloseLog(AgentLink* agent);

  // To the worker; dropped when its queue is full or it is gone.
  void Send(std::string packet);
  void FlushPackets();
  // Wakes up when the worker takes data again, if any waits for it.
  void UpdateInterest();
  void Signal(int number) const;
  // A signal that somebody has sent to the job. SIGUSR1 and SIGUSR2 tell a program something; one
  // that does not listen, or not yet, would only die of them, and does not get them.
  void PassSignal(AgentLink* agent, int number);

  bool alive() const { return alive_; }  // its main process is not reaped yet
  // Its program was started, and has not ended.
  bool runs() const { return alive_ && !process_.start_pipe.valid() && !start_failed_; }
  bool said_hello() const { return said_hello_; }
  uint64_t output_bytes() const { return output_bytes_; }  // read from its pipe so far
  const StepPage& page() const { return process_.page; }
  pid_t pid() const { return process_.pid; }
  int64_t rank() const { return spec_->rank; }

 private:
  void TellLogNews(AgentLink* agent);
  void SayLine(AgentLink* agent, const std::string& text);
  void TellStartFailed(AgentLink* agent, const StartFailure& failure);
  void TellVoidPacket(AgentLink* agent, const std::string& problem);
  void TellFlood(AgentLink* agent);
  std::string ExitedPacket(const siginfo_t& info, int64_t time_ns) const;

  const WorkerSpec* spec_;
  size_t index_;
  Poller* poller_;
  StartedWorker process_;
  PacketQueue queue_{kWorkerQueueBytesMax};
  bool alive_ = false;
  bool wants_write_ = false;  // what the poller knows
  bool start_failed_ = false;
  bool said_hello_ = false;
  uint64_t output_bytes_ = 0;
  PacketBudget budget_;
  bool told_flood_ = false;
  bool told_signal_ = false;
  uint64_t void_packets_ = 0;
  uint64_t packets_dropped_ = 0;  // those to the worker
  uint64_t console_dropped_ = 0;  // bytes since its last Console packet
  bool console_in_line_ = false;  // that packet ended in the middle of a line
  uint64_t log_news_told_ = 0;
};

// What a page says, as the keys that Exited, Stalled and Places share.
void AddPage(const StepPageContent& page, PacketWriter* packet);

}  // namespace ddprun::keeper
