// The agent's decisions: Step(state, event, now) changes the state and says what is to be done, in
// order.
//
// An agent carries out a coordinator's orders on one node through a keeper per generation, and
// tells what happens. It holds at most one generation at a time, never starts one that is not newer
// than all it has seen, and ends its workers when it may no longer believe that the coordinator
// counts on them (broken stream without a lease, or lease over). Pure; the shell is agent.h. Also
// run by the simulator.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/reliable_link.h"
#include "ddprun/v1/agent.pb.h"

namespace ddprun::agent {

struct Identity {
  std::string job_id;  // "" joins any
  std::string node;
  std::string boot_id;
  std::string incarnation;
  std::string address;
  std::string version;
  uint32_t slots = 0;
  int32_t node_rank_wanted = -1;
  std::map<std::string, std::string> versions{};  // of libtorch, cuda, nccl; empty: not known
  uint32_t master_port = 0;                       // held for MASTER_PORT; 0: none is
  std::string interface {};                       // network card of `address`, for people
};

struct RunningGeneration {
  uint64_t number = 0;
  v1::StartWorkers order;
  bool stopping = false;
  std::map<uint32_t, v1::WorkerStarted> workers;  // by rank
};

// Leaving while the job goes on. Planned: the workers go on until the coordinator has made a
// checkpoint and stopped them; then it releases this node. At once: they are killed, and the
// coordinator hears of it when none is left.
enum class Leave { kStays, kPlanned, kAtOnce };

struct State {
  Identity identity;
  double join_timeout_seconds = 600;  // how long the first coordinator is awaited
  std::string job_id;                 // once welcomed
  std::string leader_token;
  bool attached = false;  // Welcome has come on the present stream
  double lease_seconds = 0;
  double heartbeat_seconds = 0;
  int64_t lease_until_ns = 0;  // 0: none runs
  int64_t next_heartbeat_ns = 0;
  uint64_t heartbeat_sequence = 0;
  std::map<uint64_t, int64_t> heartbeats_sent_ns;  // those not answered yet
  int64_t clock_offset_ns = 0;
  int64_t clock_uncertainty_ns = 0;
  ReliableLink<v1::AgentMessage> link;
  uint64_t link_number = 0;  // Welcome.link; 0: never welcomed
  uint64_t newest_generation = 0;
  std::optional<RunningGeneration> running;
  std::optional<v1::StartWorkers> pending;  // waits for the old generation's end
  bool pause_pending = false;               // it is to be paused as soon as it runs
  bool job_over = false;
  int32_t job_exit_code = 0;  // once the job is over
  Leave leave = Leave::kStays;
  std::string leave_reason;
  int64_t leave_deadline_ns = 0;  // a planned leave that takes longer is one at once; 0: none
  int64_t last_heard_ns = 0;      // when the coordinator last was there for sure; 0: never
  int64_t give_up_ns = 0;         // detached: when to stop trying; 0 while attached
  int64_t retry_ns = 0;           // refused for now: when to try again; 0: not
  uint64_t stream = 0;            // the present one
  bool ended = false;
};

// ---- events
// `stream` numbers the agent's streams: what one says that was replaced since is dropped.
struct Connected {  // a new stream stands
  uint64_t stream = 0;
};
struct Disconnected {
  std::string reason;
  uint64_t stream = 0;
};
struct CoordinatorSaid {
  v1::CoordinatorMessage message;
  int64_t clock_offset_ns = 0;  // for a HeartbeatAnswer: what the shell computed
  int64_t clock_uncertainty_ns = 0;
  uint64_t stream = 0;
};
// Something that the keeper of a generation reported, as the message for the coordinator.
struct KeeperSaid {
  uint64_t generation = 0;
  v1::AgentMessage fact;
};
// No process of the generation is left on this node.
struct KeeperGone {
  uint64_t generation = 0;
  bool died = false;  // it did not end by itself
  std::string reason;
  std::vector<int32_t> unkillable_pids;
  uint32_t master_port = 0;  // now held for the next generation; 0: none is
};
// This node is to leave the job (a signal, or whoever started the agent). `now`: without waiting
// for a checkpoint; so does a second one.
struct LeaveAsked {
  std::string reason;
  bool now = false;
};
struct TimePassed {};
using Event = std::variant<Connected, Disconnected, CoordinatorSaid, KeeperSaid, KeeperGone,
                           LeaveAsked, TimePassed>;

// ---- effects
struct SendUp {
  v1::AgentMessage message;
};
struct SpawnKeeper {
  v1::StartWorkers order;
  int64_t lease_milliseconds = 0;  // left at this moment; 0: no lease
  int64_t lease_until_ns = 0;      // the same as a moment of the clock that Step is given
};
struct OrderKeeper {
  v1::StopWorkers order;
};
struct TellWorker {
  v1::CoordinatorMessage message;
};  // Value, ExchangeRefused, EdgeRequest, CheckpointAt, CheckpointSettled
struct SignalWorkers {
  uint64_t generation = 0;
  int32_t signal = 0;
};
struct ExamineWorkers {
  uint64_t generation = 0;
};
// For the keeper. The moment is the truth: a duration grows by the time for which it waits.
struct RenewLease {
  int64_t milliseconds = 0;
  int64_t until_ns = 0;
};
struct Reconnect {
  int64_t not_before_ns = 0;
};
// The exit code is the job's where it is over, 2 for a refusal, 3 when no coordinator came in time,
// 1 when it was lost. `left`: as it was asked to, and not with the job.
struct End {
  int exit_code = 0;
  std::string reason;
  bool left = false;
};
using Effect = std::variant<SendUp, SpawnKeeper, OrderKeeper, TellWorker, SignalWorkers,
                            ExamineWorkers, RenewLease, Reconnect, End>;

std::vector<Effect> Step(State& state, const Event& event, int64_t now_ns);
int64_t NextDeadlineNs(const State& state);

}  // namespace ddprun::agent
