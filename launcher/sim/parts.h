// The simulated machines: plain values that the world (world.h) changes.
//
// A node holds one agent (the real core) and the keepers that it started; a keeper holds workers;
// the workers of one generation form a gang, which stands for their communicator: it knows nothing
// of the control plane.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/agent/core.h"
#include "launcher/sim/scenario.h"

namespace ddprun::sim {

// Where a worker's training thread stands.
enum class Stage : uint8_t {
  kBooting,
  kExchanging,  // published, awaits its peers' values
  kConnecting,  // has all values; the gang is not complete
  kConnected,   // about to say Ready
  kNext,        // may enter the next step
  kStepping,    // inside a step
  kEdge,        // completed a step; may have to wait for CheckpointAt
  kBegin,       // wants to begin a checkpoint; one before may be in flight
  kSettle,      // waits for the end of its last checkpoint, then ends
  kDone,
};

// A checkpoint at an agreed step, as libddprun keeps it.
struct EdgeRequest {
  uint64_t id = 0;
  uint64_t edge = 0;
  uint64_t target = 0;
  bool agreed = false;
  bool stop = false;
};

struct SimWorker {
  uint32_t rank = 0;
  int32_t pid = 0;
  bool alive = false;
  bool ended_well = false;  // with exit code 0
  bool hung = false;
  int64_t hung_ns = 0;  // since then
  bool ends = false;    // its exit is on the way
  Stage stage = Stage::kBooting;
  uint32_t values_missing = 0;
  uint64_t completed = 0;
  int64_t next_report_ns = 0;
  std::vector<EdgeRequest> requests;
  bool ending = false;            // after this checkpoint it exits with 0
  uint64_t last_begun = 0;        // newest checkpoint step that it began
  uint64_t in_flight = 0;         // 0: none
  bool reported = false;          // its files of that step
  std::vector<uint64_t> dropped;  // steps that were dropped, perhaps before it began them
};

struct SimKeeper {
  uint32_t id = 0;
  uint32_t node = 0;
  uint32_t agent = 0;  // the agent that started it
  uint32_t gang = 0;
  uint64_t generation = 0;
  uint32_t first_rank = 0;
  int64_t lease_until_ns = 0;  // 0: none
  int64_t kill_at_ns = 0;      // end of a grace; 0: none
  int64_t armed_ns = 0;        // when its timer rings; 0: not set
  v1::StopWorkers::Mode mode = v1::StopWorkers::MODE_UNSPECIFIED;
  uint32_t alive = 0;
  bool gone = false;
  std::vector<SimWorker> workers;
};

// The communicator of one generation.
struct Gang {
  uint64_t generation = 0;
  uint32_t world_size = 0;
  uint32_t group_world_size = 0;
  uint64_t resume_step = 0;
  std::vector<uint32_t> keepers;  // by id
  std::vector<bool> ranks;        // those that were started
  uint32_t connected = 0;
  uint32_t arrived = 0;  // ranks that are inside step `step`
  uint64_t step = 0;
  bool rank_zero_in_flight = false;
  uint64_t skipped_step = 0;  // the checkpoint due there is left out by all
  bool broken = false;        // a member ended in the middle
  bool one_hangs = false;
  bool timed_out = false;  // broken because a member did not come in time
};

struct SimNode {
  NodePlan plan;
  bool up = false;
  agent::State agent;
  bool agent_alive = false;
  uint32_t agent_number = 0;  // counts incarnations
  std::string incarnation;
  int64_t agent_armed_ns = 0;
  uint32_t stream = 0;                   // the agent's present one; 0: none
  std::vector<uint32_t> server_streams;  // the coordinator's present one for each incarnation
  uint32_t keeper = 0;                   // the present agent's; 0: none
  int64_t stop_ordered_ns = 0;           // the agent's note of its order to that keeper
  int64_t paused_until_ns = 0;
  bool thaws = false;  // has been paused, and nothing of it ran since
  int64_t agent_paused_until_ns = 0;
  int64_t cut_up_until_ns = 0;
  int64_t cut_down_until_ns = 0;
  bool spawn_fails = false;
  int64_t to_agent_ns = 0;  // the sockets between agent and keeper keep the order
  int64_t to_keeper_ns = 0;
};

struct Stream {
  uint32_t node = 0;
  uint32_t agent = 0;
  bool broken = false;
};

}  // namespace ddprun::sim
