// State of one job as its coordinator sees it: plain values, changed only by Step (core.h).
//
// A job is a sequence of generations. The phases:
//   kWaiting    not enough nodes; a deadline says how long we wait
//   kChoosing   the resume step of the next generation is being looked up (checkpoint I/O)
//   kRunning    StartWorkers was sent; workers start, run and end
//   kStopping   the generation is over; we wait until nothing of it is left on any live node
//   kBackingOff a restart is due at `deadline_ns`
//   kFinished   terminal
// Between generations nodes come and go; while one runs, a newcomer or a node that leaves asks for
// a planned resize (core_resize.cc): a checkpoint, kStopping, and the next one free of charge.
// Invariants: `generation` only grows; exactly one generation has live workers; a node in `nodes`
// is alive (attached or within its lease).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/reliable_link.h"
#include "ddprun/v1/agent.pb.h"

namespace ddprun::coordinator {

constexpr int64_t kSecondNs = 1'000'000'000;

// What a failed generation was about: `cause` in failures, events and time_lost_by_cause.
enum class Cause {
  kNone,                  // it has not failed, or nobody knows
  kWorkerError,           // a worker's own error report, or its exit code
  kSignal,                // a worker was killed by a signal
  kOutOfMemory,           // by the kernel, for want of memory
  kHang,                  // nothing moved for the hang timeout
  kCommunicationUnknown,  // workers lost each other, and none of them shows why
  kNodeLost,
  kNodeUnhealthy,  // a health check failed
  kPortCollision,  // MASTER_PORT was taken
  kStartFailed,    // a program could not be executed
  kInitTimeout,    // not every rank was ready in time
  kKeeperDied,     // a node's keeper ended before its workers
  kUnkillable,     // processes are left that SIGKILL does not end
};
const char* CauseName(Cause cause);  // worker_error, signal, oom …

enum class Phase { kWaiting, kChoosing, kRunning, kStopping, kBackingOff, kFinished };
const char* PhaseName(Phase phase);

struct Node {
  std::string name;
  std::string incarnation;
  std::string address;
  uint32_t slots = 0;
  int32_t node_rank_wanted = -1;
  uint64_t join_order = 0;
  bool attached = false;
  int64_t last_heard_ns = 0;
  int64_t clock_offset_ns = 0;    // coordinator minus node
  bool stopped = true;            // nothing of the current generation is left here
  uint64_t stale_generation = 0;  // of an earlier coordinator, and still ending here; 0: none
  bool outlived = false;          // it was a node of an earlier coordinator, and has waited
  uint64_t stream = 0;            // the present one
  uint32_t master_port = 0;       // held there for MASTER_PORT; 0: none is
  bool leaving = false;   // planned: it gets no more workers, and is released when it has none
  bool released = false;  // … was: forgotten when its stream ends
  std::string leave_reason;
  // Another agent of this name that wants in: it is a namesake when this one is heard from since,
  // and its successor otherwise.
  std::string claimed_by;
  int64_t claimed_ns = 0;
  ReliableLink<v1::CoordinatorMessage> link;
};

// One rank's place. Ranks of a node are consecutive.
struct Placement {
  std::string node;
  uint32_t first_rank = 0;
  uint32_t count = 0;
};

struct Worker {
  std::string node;
  uint32_t local_rank = 0;
  bool started = false;
  bool ready = false;
  std::optional<v1::WorkerExited> exited;
  std::optional<v1::WorkerFailed> failed;  // its own report
  std::string cause;                       // of the exit, once told in an event
};

// One checkpoint on its way: from the first CheckpointStarted to its commit or end.
struct PendingCheckpoint {
  uint64_t step = 0;
  bool committing = false;
  std::map<uint32_t, std::vector<v1::ShardFile>> shards;  // by rank
};

// A checkpoint that was dropped since a rank could not write its part.
struct RefusedCheckpoint {
  uint64_t step = 0;
  uint32_t rank = 0;
  std::string reason;   // the rank's own
  std::string dropped;  // as the other ranks were told
};

// A request for a checkpoint at an agreed step (worker_protocol.md, "Agreed step").
struct EdgeAgreement {
  uint64_t id = 0;
  bool stop = false;
  std::map<uint32_t, uint64_t> edges;  // by rank
  bool told = false;                   // all ranks know the step; its checkpoint is awaited
  uint64_t step = 0;                   // once told
};

// A look at all workers of a generation in which one stands still, or is not ready in time
// (core_hang.cc).
struct Examination {
  bool for_init = false;  // not every rank was ready in time
  uint32_t found_by = 0;  // the rank that was told first
  double seconds = 0;
  int64_t deadline_ns = 0;
  std::set<std::string> awaited;               // nodes that have not answered
  std::map<uint32_t, v1::WorkerPlace> places;  // by rank
};

// The generation is being ended for another one with more or fewer nodes.
struct Resize {
  std::string reason;
};

// Ctrl-Z (core_pause.cc).
struct Pause {
  bool wanted = false;
  bool told = false;
  int64_t since_ns = 0;
  std::set<std::string> paused_nodes;
  bool start_held = false;  // the checkpoint of the next generation was chosen meanwhile
};

struct Generation {
  uint64_t number = 0;  // 0: none yet
  std::vector<Placement> placements;
  std::vector<Worker> workers;  // by rank
  // How many of them have started, are ready, are ready or have exited, have exited, and with 0:
  // each message would cost a look at all of them otherwise.
  uint32_t started = 0;
  uint32_t ready = 0;
  uint32_t ready_or_exited = 0;
  uint32_t exited = 0;
  uint32_t exited_well = 0;
  std::optional<Resize> resize;
  bool has_result = false;  // rank 0 has told the job's result: it is through
  uint64_t resume_step = 0;
  int64_t started_ns = 0;
  uint64_t step = 0;        // newest completed step seen
  uint64_t first_step = 0;  // first completed step; 0 while none
  int64_t first_step_ns = 0;
  int64_t last_step_ns = 0;
  std::string end_reason;  // "" while it runs well
  bool failed = false;     // it ended by failure
  // Why the coordinator itself ended it (node lost or unhealthy, hang, init timeout, keeper died);
  // kNone: a worker's failure did.
  Cause ended_for = Cause::kNone;
  std::string blamed_node;
  int64_t blamed_rank = -1;                      // where one rank stands out (a hang)
  std::string report;                            // file about it in the run folder; "": none
  std::map<std::string, std::string> unhealthy;  // node → what its health check said
  // Node whose address others have tried in vain → who they are, and what they said.
  std::map<std::string, std::map<std::string, std::string>> unreached;
  std::map<std::string, std::vector<int32_t>> unkillable;  // node → pids
  int64_t all_started_ns = 0;  // when the last worker had started; 0: not yet
  int64_t first_ready_ns = 0;  // when the first rank was ready; 0: none was
  // A worker has ended because it lost a peer: until then the peer may show why; 0: none has.
  int64_t await_cause_until_ns = 0;
  int64_t ended_ns = 0;        // when its end was ordered, or its last worker ended
  v1::StopWorkers stop_order;  // the last one sent; repeated to nodes that attach again
  std::optional<PendingCheckpoint> checkpoint;
  uint64_t settled_step = 0;  // newest step whose checkpoint was committed or dropped
  std::optional<v1::CheckpointFact> failed_ahead;  // a refusal of the step after the one committing
  std::optional<RefusedCheckpoint> refused;        // the last one
  std::optional<Examination> examination;
  int64_t paused_ns = 0;  // of its life, pauses that are over
  std::optional<EdgeAgreement> agreement;
  // Exchange: published values, and who waits for which.
  std::map<std::pair<std::string, std::string>, std::string> values;
  std::map<std::pair<std::string, std::string>, std::set<uint32_t>> awaits;
};

// Ranks whose last words are the same.
struct FailureGroup {
  std::vector<uint32_t> ranks;
  std::string text;
};

// What a failed generation was about; becomes `failures` and `first_failure` of result.json.
struct FailureRecord {
  uint64_t generation = 0;
  int64_t rank = -1;  // -1: no rank is to blame
  std::string node;
  int32_t pid = 0;
  int32_t exit_code = 0;
  int32_t signal = 0;
  double t = 0;
  Cause cause = Cause::kNone;
  std::string reason;
  std::string error_message;    // of the worker's own error report (PyTorch's @record); "": none
  std::string error_traceback;  // of the same
  std::string core_dump;        // where its core went, as far as that is known
  std::vector<std::string> artifacts;
  std::string report;  // file about a hang, in the run folder
  std::vector<std::string> log_tail;
  std::vector<uint32_t> secondary;  // ranks that died of another's death
  std::vector<FailureGroup> groups;
  double time_lost_seconds = 0;  // accounted when the next generation works, or at the job's end
  bool before_start = false;     // the generation had not got going
  bool config = false;           // the worker says that a restart cannot help
  bool sends_away = false;       // it is over with the nodes that are sent away for it
};

// What is known of a node's failures, also while it is away (strikes.h).
struct NodeStrikes {
  uint32_t strikes = 0;  // since it was last let in
  int64_t last_ns = 0;
  uint32_t times_out = 0;  // how often it was left out; doubles the cool-down
  int64_t out_until_ns = 0;
  bool out = false;
};

// What the restart policy needs to know of the past (restart_policy.h).
struct History {
  uint32_t restarts_charged = 0;  // against the budget of this run of ddprun
  // When those were charged; only the ones within the restart window, where there is one.
  std::vector<int64_t> charged_ns;
  uint32_t port_collisions_in_a_row = 0;
  uint32_t restarts_free = 0;
  uint32_t failures_in_a_row = 0;  // without training progress between them
  uint32_t start_failures_in_a_row = 0;
  uint32_t restarts_without_commit = 0;
  bool any_commit = false;
};

struct StopRequest {
  bool requested = false;
  int32_t signal = 0;
  bool kill = false;
  std::string reason;
  std::string failure_kind;  // for stops that count as failures
  int32_t exit_code = 0;
};

// Where the job's time went (accounting.h).
struct Accounts {
  bool steps_reported = false;  // some generation has reported steps
  int64_t productive_ns = 0;
  int64_t lost_since_ns = 0;  // a failure's lost time runs since then; 0: none does
  uint64_t lost_generation = 0;
  Cause lost_cause = Cause::kNone;
  int64_t accounted_until_ns = 0;  // nothing before this moment is counted again
  double lost_seconds = 0;
  std::map<std::string, double> lost_by_cause;
};

// Something that may come from outside in any number: told at most once a second, with a count.
struct Tally {
  uint64_t untold = 0;
  int64_t told_ns = 0;  // 0: never
  std::string node;     // the last one
  std::string peer;
  std::string reason;
};

struct State {
  v1::JobSpec spec;
  std::string version;                          // of this ddprun
  std::map<std::string, std::string> versions;  // what all nodes must have; empty: not known yet
  std::string versions_of;                      // whose they are
  std::string leader_token;
  Phase phase = Phase::kWaiting;
  int64_t now_ns = 0;
  int64_t started_ns = 0;
  int64_t deadline_ns = 0;       // of the phase; 0: none
  int64_t stop_deadline_ns = 0;  // a stop's checkpoint must be there by then; 0: none
  std::map<std::string, Node> nodes;
  uint64_t joins = 0;
  bool ever_complete = false;  // enough nodes have been here once
  bool no_more_nodes = false;  // none can come any more while this wait lasts
  std::string sent_away;       // the last node that had to go, and why; "": none
  int64_t not_before_ns = 0;   // workers of an earlier coordinator may live until then; 0: none
  int64_t last_call_ns = 0;    // with MIN of MIN:MAX nodes here, latecomers are awaited until then
  int64_t grow_ns = 0;         // a newcomer is to be taken in then; 0: none
  int64_t grow_since_ns = 0;   // the first of those newcomers came
  int64_t silence_ns = 0;      // no node is lost by its silence before; 0: to be looked up
  int32_t exit_code = 0;       // once finished
  std::map<int, Tally> refusals;  // by v1::Refusal::Kind
  Tally rejected;                 // messages of nodes that are not theirs to send
  Generation generation;
  std::vector<Placement> last_placements;  // for stable ranks
  uint64_t next_edge_id = 1;
  bool checkpoint_wanted = false;
  StopRequest stop;
  Pause pause;
  History history;
  uint64_t restarts_before = 0;  // in earlier runs of this run folder
  uint64_t committed_step = 0;
  uint64_t best_step = 0;  // highest step completed in any generation
  // Of the last generation that trained, to account for what its end has cost.
  uint64_t trained_to_step = 0;
  double seconds_per_step = 0;
  Accounts accounts;
  std::vector<FailureRecord> failures;
  std::map<std::string, NodeStrikes> strikes;  // by node name
  std::map<std::string, std::string> result_values;
};

// The job's end, for result.json and the exit code.
struct Outcome {
  std::string status;  // succeeded | failed | stopped
  int32_t exit_code = 0;
  std::string failure_kind;
  std::string reason;
  int32_t worker_exit_code = 0;  // of the worker that is to blame, before --exit-code-map; 0: none
};

}  // namespace ddprun::coordinator
