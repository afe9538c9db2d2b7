// The coordinator's decisions: Step(state, event, now) changes the state and says what is to be
// done, in order.
//
// No clock, thread, lock, log or I/O in here; the shell (server.h) feeds events from one thread and
// performs the effects in their order. Every message of an agent goes through two gates at the top
// of Step: its number on the link (once and in order), and its generation (a stale one is dropped).
// The same code runs under the simulator (launcher/sim).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "ddprun/v1/agent.pb.h"
#include "ddprun/v1/coordinator.pb.h"
#include "launcher/coordinator/state.h"

namespace ddprun::coordinator {

// ---- events

// What earlier runs of the same run folder left behind (--resume).
struct Past {
  uint64_t generation = 0;
  uint64_t restarts = 0;
  double time_lost_seconds = 0;
  std::map<std::string, double> lost_by_cause;
  bool may_run = false;  // its newest generation was never seen to end
};
struct JobSubmitted {
  v1::JobSpec spec;
  std::string leader_token;
  std::string version;
  Past past;
  // Of libtorch, cuda and nccl here, where they are known; otherwise the first node's count.
  std::map<std::string, std::string> versions{};
};
// `stream` numbers the streams of all agents: what one says that was replaced since is dropped. A
// Hello comes only after its Answer was checked.
struct NodeMessage {
  std::string node;
  std::string incarnation;
  v1::AgentMessage message;
  uint64_t stream = 0;
  std::string peer{};  // where it came from, for people
};
struct NodeDetached {
  std::string node;
  std::string incarnation;
  std::string reason;
  uint64_t stream = 0;
};
// The shell turned somebody away before the core saw a Hello; becomes the event join_refused.
struct JoinRefused {
  std::string node;  // as it calls itself; "" where it has not come so far
  std::string peer;
  v1::Refusal::Kind kind = v1::Refusal::KIND_UNSPECIFIED;
  std::string reason;
};
struct RejectedCheckpoint {
  uint64_t step = 0;
  std::string path;
  std::string reason;
};
struct ResumeChosen {
  uint64_t generation = 0;
  uint64_t step = 0;  // 0: from scratch
  std::string path;   // folder; "" from scratch
  std::vector<RejectedCheckpoint> rejected;
};
struct CheckpointStored {
  uint64_t generation = 0;
  uint64_t step = 0;
  bool ok = false;
  std::string path;
  std::string reason;  // of a failure
};
struct ControlAsked {
  v1::ControlRequest::Action action = v1::ControlRequest::ACTION_UNSPECIFIED;
  int32_t signal = 0;
};
// A command of RunHook has ended.
struct HookEnded {
  std::string hook;  // on_failure, on_finish
  uint64_t generation = 0;
  bool ok = false;
  std::string reason;  // of a failure
};
struct TimePassed {};
using Event = std::variant<JobSubmitted, NodeMessage, NodeDetached, JoinRefused, ResumeChosen,
                           CheckpointStored, ControlAsked, HookEnded, TimePassed>;

// ---- effects

struct SendToNode {
  std::string node;
  std::string incarnation;
  v1::CoordinatorMessage message;
};
struct CloseNode {
  std::string node;
  std::string incarnation;
  bool cut = false;  // end the stream from here; otherwise the agent ends it, having read why
};
struct RecordEvent {
  nlohmann::ordered_json event;  // without `t`, which the shell adds
};
struct PersistGeneration {
  uint64_t generation = 0;  // must be durable before anything that follows is done
};
struct ChooseResume {
  uint64_t generation = 0;
};
struct CommitCheckpoint {
  uint64_t generation = 0;
  uint64_t step = 0;
  uint32_t world_size = 0;
  std::vector<v1::ShardFile> files;
};
struct DropStaging {
  uint64_t generation = 0;
  uint64_t step = 0;
};
// --on-failure, after a failed generation; nobody waits for it. (--on-finish is part of FinishJob.)
// The report on a hang (hang_report.h).
struct WriteHangReport {
  std::string name;  // without .json or .txt; relative to the run folder
  nlohmann::ordered_json report;
};
struct RunHook {
  FailureRecord failure;
  Outcome decision;  // status "" when the job goes on
};
struct FinishJob {
  Outcome outcome;
};
using Effect = std::variant<SendToNode, CloseNode, RecordEvent, PersistGeneration, ChooseResume,
                            CommitCheckpoint, DropStaging, WriteHangReport, RunHook, FinishJob>;

// Performs one transition. `now_ns` is monotonic and never goes back.
std::vector<Effect> Step(State& state, const Event& event, int64_t now_ns);

// When TimePassed is due next; 0 when no deadline is set.
int64_t NextDeadlineNs(const State& state);

}  // namespace ddprun::coordinator
