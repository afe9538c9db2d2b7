// A node speaks for its own ranks only, whatever it sends: the one gate against an agent that has
// gone mad, so that no handler has to ask again whether a rank exists and whose it is.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/turn.h"

namespace ddprun::coordinator {
namespace {

constexpr int64_t kNoRank = -1;

int64_t RankOf(const v1::AgentMessage& message) {
  using M = v1::AgentMessage;
  switch (message.message_case()) {
    case M::kWorkerStarted:
      return message.worker_started().rank();
    case M::kWorkerReady:
      return message.worker_ready().rank();
    case M::kWorkerProgressed:
      return message.worker_progressed().rank();
    case M::kWorkerFailed:
      return message.worker_failed().rank();
    case M::kWorkerExited:
      return message.worker_exited().rank();
    case M::kPublish:
      return message.publish().rank();
    case M::kAwait:
      return message.await().rank();
    case M::kEdgeReached:
      return message.edge_reached().rank();
    case M::kCheckpoint:
      return message.checkpoint().rank();
    case M::kWorkerResult:
      return message.worker_result().rank();
    case M::kWorkerStalled:
      return message.worker_stalled().rank();
    case M::kGenerationStopped:
    case M::kWorkersExamined:
    case M::kWorkersSignalled:
    case M::kNodeUnhealthy:
    case M::kLeaving:
    case M::kHello:
    case M::kAnswer:
    case M::kHeartbeat:
    case M::MESSAGE_NOT_SET:
      return kNoRank;
  }
  return kNoRank;
}

bool OwnsRank(const Turn& turn, const Node& node, int64_t rank) {
  const auto& workers = turn.state.generation.workers;
  return rank < static_cast<int64_t>(workers.size()) &&
         workers[static_cast<size_t>(rank)].node == node.name;
}

bool Reject(Turn& turn, const Node& node, const std::string& reason) {
  Tally& tally = turn.state.rejected;
  ++tally.untold;
  tally.node = node.name;
  tally.reason = reason;
  TellTallies(turn);
  return false;
}

}  // namespace

bool MaySay(Turn& turn, const Node& node, const v1::AgentMessage& message) {
  const int64_t rank = RankOf(message);
  if (rank != kNoRank) {
    if (OwnsRank(turn, node, rank)) return true;
    return Reject(turn, node, absl::StrCat("it speaks of rank ", rank, ", which is not its own"));
  }
  if (message.has_workers_examined()) {
    const auto& places = message.workers_examined().workers();
    const bool own = std::all_of(places.begin(), places.end(), [&](const v1::WorkerPlace& place) {
      return OwnsRank(turn, node, place.rank());
    });
    if (!own) return Reject(turn, node, "it has examined ranks that are not its own");
  }
  const bool of_node = message.has_node_unhealthy() || message.has_generation_stopped();
  if (of_node && !turn.IsMember(node.name)) {
    return Reject(turn, node, "it takes no part in this generation");
  }
  return true;
}

}  // namespace ddprun::coordinator
