// What one simulated job looks like and what will go wrong in it: everything drawn from the seed
// before the job begins.
//
// Pure values. The same (seed, part) gives the same scenario for ever.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddprun/v1/job.pb.h"

namespace ddprun::sim {

constexpr int64_t kMillisecondNs = 1'000'000;
constexpr int64_t kSecondNs = 1'000'000'000;

constexpr int32_t kCodeOfExit = 7;  // of workers that end with a code and say nothing

struct NodePlan {
  std::string name;
  uint32_t slots = 1;
  int32_t rank_wanted = -1;
  int64_t joins_ns = 0;
  int64_t clock_offset_ns = 0;  // its CLOCK_REALTIME minus the coordinator's
};

// Of each message in either direction.
struct NetworkPlan {
  double loss = 0;
  double duplicate = 0;
  double straggler = 0;  // share that comes up to a second late
  int64_t delay_min_ns = 0;
  int64_t delay_max_ns = 0;
};

struct WorkPlan {
  uint64_t total_steps = 0;
  int64_t step_ns = 0;
  uint64_t checkpoint_every = 0;
  int64_t write_ns = 0;               // longest time that a rank needs for its shard
  double peers_hang = 0;              // share of ranks that hang silently when a peer is gone
  double ignores_term = 0;            // share of workers that need KILL
  bool last_checkpoint_again = true;  // a resumed generation with nothing to do writes all the same
};

enum class FaultKind {
  kWorkerKilled,
  kTwoWorkersKilled,
  kWorkerError,   // reports its error, then ends
  kWorkerExits,   // ends with a code and says nothing
  kWorkerConfig,  // reports an error that a restart cannot mend
  kWorkerHangs,
  kWorkerCollides,  // reports that its port was taken
  kWorkerMistaken,  // reports that a peer is gone although none is
  kNodePaused,      // with everything on it
  kAgentPaused,
  kNodeDies,
  kAgentKilled,
  kAgentLeaves,       // it is asked to: with a checkpoint first
  kAgentLeavesTwice,  // … and asked again, before or after it has been released
  kAgentLeavesNow,    // without waiting for a checkpoint
  kKeeperKilled,
  kStreamBreaks,
  kPartition,
  kShardFails,
  kCommitFails,
  kNewestCorrupt,
  kCoordinatorPaused,
  kSpawnFails,
  kCoordinatorKilled,  // and started again on the same run folder
  kAskCheckpoint,      // controls count as disturbances, not as faults
  kAskStop,
  kAskKill,
};
const char* FaultName(FaultKind kind);
bool IsControl(FaultKind kind);

struct FaultPlan {
  FaultKind kind = FaultKind::kWorkerKilled;
  uint64_t at_event = 0;
};

// Breaks the world on purpose, so that a test sees the checker notice.
enum class Sabotage {
  kNone,
  kKeepersIgnoreLeases,  // I1
  kPastSaysNothingRuns,  // I1: a new coordinator does not wait for old leases
  kKeepersHideFailures,  // I13: every end is told as one with 0
  kWorkersIgnoreEdges,   // I12: nobody answers when a checkpoint is to be agreed
  kDiskNeverCommits,     // I4: nobody hears the end of a checkpoint
  kKeepersIgnoreStalls,  // I16: nobody sees that a worker stands still
  kWrongResumeStep,      // I2: the disk names a step that was never committed
};

struct Scenario {
  uint64_t seed = 0;
  uint64_t part = 0;  // a seed is one job or several in a row
  uint64_t random_seed = 0;
  bool single_node = false;
  v1::JobSpec spec;
  std::vector<NodePlan> nodes;
  NetworkPlan network;
  WorkPlan work;
  std::vector<FaultPlan> faults;  // by at_event
  Sabotage sabotage = Sabotage::kNone;
};

struct ScenarioOptions {
  bool faults = true;  // false: nothing goes wrong
  // R3: nodes leave and come back, in any order and speed, and little else goes wrong.
  bool only_membership = false;
};

Scenario MakeScenario(uint64_t seed, uint64_t part, const ScenarioOptions& options);

}  // namespace ddprun::sim
