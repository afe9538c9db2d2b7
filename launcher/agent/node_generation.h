// NodeGeneration: what a node does for one generation, from the preparation to the end of its
// keeper. The part of the agent's shell that has to do with processes; agent.h has the loop.
//
// A passive object of the loop thread: it polls the descriptors, calls Pump when it wakes up, and
// gives the events to the core afterwards. At most one generation at a time. All times are
// those of the agent's clock (lease_clock.h) in nanoseconds unless they are said to be others.
#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "launcher/agent/core.h"
#include "launcher/agent/examination.h"
#include "launcher/agent/exchange_fanout.h"
#include "launcher/agent/exit_evidence.h"
#include "launcher/agent/gpu_memory.h"
#include "launcher/agent/keeper_facts.h"
#include "launcher/agent/keeper_process.h"
#include "launcher/agent/lease_clock.h"
#include "launcher/agent/node_own.h"
#include "launcher/agent/preparation.h"
#include "launcher/agent/reserve.h"
#include "launcher/agent/reserved_port.h"
#include "launcher/agent/stop_bound.h"
#include "launcher/console/console.h"
#include "launcher/placement/plan.h"

namespace ddprun::agent {

class NodeGeneration {
 public:
  struct Options {
    std::string node;
    std::string keeper_path;
    std::string worker_path;
    Console* console = nullptr;         // outlives this
    const LeaseClock* clock = nullptr;  // likewise
    std::function<void()> wake;         // from another thread: Pump has something to do
    placement::Machine machine;         // what the workers share
    NodeOwn own;
  };
  explicit NodeGeneration(Options options)
      : options_(std::move(options)),
        gpu_memory_(options_.machine.nvml),
        reserve_(options_.keeper_path),
        examination_(options_.wake) {}

  // The port that is held for MASTER_PORT in the next generation, should this node get rank 0 of
  // one over several nodes; 0 where none is.
  uint32_t held_port() const { return options_.own.several_nodes ? master_port_.port() : 0; }
  // From now on. An error: there is none to be had.
  absl::Status HoldPort();

  // ---- orders of the core. REQUIRES for Begin: the one before is over.
  void Begin(const SpawnKeeper& order);
  void Stop(const v1::StopWorkers& order);
  void Tell(const v1::CoordinatorMessage& message);
  void Signal(const SignalWorkers& order);
  void Examine(uint64_t generation);
  void RenewLease(int64_t until_ns);
  // Leaves without further talk: the end of the keeper's socket makes it kill everything.
  void Abandon();

  // ---- the loop
  void AddPolls(std::vector<pollfd>* polls) const;
  int64_t NextDeadlineNs() const {
    if (preparation_) return preparation_->NextDeadlineNs();
    return keeper_ ? stop_bound_.deadline_ns() : 0;
  }
  void Pump(int64_t now_ns);
  // What happened, in order.
  std::deque<Event> TakeEvents();

 private:
  absl::Status MakeFolders();
  absl::Status PlaceWorkers();
  void Prepare(int64_t now_ns);
  void ContinuePreparation(int64_t now_ns);
  absl::Status StartKeeper();
  absl::Status TakeMasterPort(NodeFacts* facts);
  void ReleaseMasterPort();
  void TellOver(KeeperGone gone);
  NodeFacts Facts() const;
  absl::StatusOr<std::unique_ptr<KeeperProcess>> MakeKeeper(const std::string& spec);
  void TellStartFailure(const absl::Status& status);
  void PumpKeeper();
  void MindStopBound(int64_t now_ns);
  void PumpExamination();
  void HandlePacket(const Packet& packet);
  void HandleFact(v1::AgentMessage fact);
  void TellWorkers(const v1::CoordinatorMessage& message);
  void ExplainExit(const Packet& packet, v1::WorkerExited* exited);
  void HandleKeeperEnd();
  std::string Prefix(const Packet& packet) const;

  Options options_;
  v1::StartWorkers order_;
  int64_t lease_until_ns_ = 0;  // 0: none
  placement::NodePlan places_;
  bool placement_said_ = false;
  GpuMemoryGate gpu_memory_;
  Reserve reserve_;
  std::unique_ptr<Preparation> preparation_;
  bool pause_when_started_ = false;
  std::unique_ptr<KeeperProcess> keeper_;
  clockid_t keeper_clock_ = CLOCK_BOOTTIME;  // the agent's when the keeper was started
  bool keeper_closed_ = false;
  std::optional<KeeperGone> keeper_gone_;
  StopBound stop_bound_;
  std::vector<int32_t> unkillable_;
  Examination examination_;
  WorkerNotes notes_;
  ExchangeFanout fanout_;
  ExitEvidence evidence_;
  ReservedPort master_port_;
  std::deque<Event> events_;
};

}  // namespace ddprun::agent
