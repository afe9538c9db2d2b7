// Who is here: heartbeats, and loss. Who comes in: core_join.cc.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/strikes.h"
#include "launcher/coordinator/turn.h"
#include "launcher/net/spare_text.h"

namespace ddprun::coordinator {
namespace {

constexpr int64_t kMarginNs = kSecondNs;  // between a node's lease and its replacement
// Beyond any clock: what a mad agent says must not overflow sums of times.
constexpr int64_t kOffsetMaxNs = int64_t{1} << 60;

// "" where this node is no spare. A job that has none is asked no further.
std::string SpareText(const Turn& turn, const Node& node) {
  const State& s = turn.state;
  const size_t run = s.generation.placements.size();
  const bool full = run >= s.spec.nodes_max() || s.spec.membership().keep_size();
  if (s.phase != Phase::kRunning || !full || s.nodes.size() <= run) return "";
  if (!MayTakePart(node) || turn.IsMember(node.name) || LeftOut(s).contains(node.name)) return "";
  return absl::StrCat(net::kSpareText, run, " of ", s.spec.nodes_max(),
                      " nodes run; it takes part when one is lost");
}

}  // namespace

int64_t SilenceNs(const State& state) {
  return static_cast<int64_t>(state.spec.lease_seconds() * kSecondNs) + kMarginNs;
}

void HandleHeartbeat(Turn& turn, Node& node, const v1::Heartbeat& heartbeat) {
  node.clock_offset_ns = std::clamp(heartbeat.clock_offset_ns(), -kOffsetMaxNs, kOffsetMaxNs);
  v1::CoordinatorMessage answer;
  answer.mutable_heartbeat_answer()->set_sequence(heartbeat.sequence());
  answer.mutable_heartbeat_answer()->set_heartbeat_sent_ns(heartbeat.sent_ns());
  answer.mutable_heartbeat_answer()->set_leader_token(turn.state.leader_token);
  std::string spare = SpareText(turn, node);
  answer.mutable_heartbeat_answer()->set_waiting(spare.empty() ? WaitingText(turn.state)
                                                               : std::move(spare));
  answer.set_ack(node.link.last_received());
  turn.out.push_back(SendToNode{node.name, node.incarnation, answer});
  for (auto& message : node.link.Unacknowledged()) {
    turn.out.push_back(SendToNode{node.name, node.incarnation, message});
  }
}

// `name` by value: callers pass the name that lies in the node which is erased here.
void LoseNode(Turn& turn, std::string name, const std::string& reason, bool cut) {
  State& s = turn.state;
  auto found = s.nodes.find(name);
  if (found == s.nodes.end() || s.phase == Phase::kFinished) return;
  const std::string incarnation = found->second.incarnation;
  const bool released = found->second.released;
  const bool live = turn.IsMember(name) && !found->second.stopped;
  s.nodes.erase(found);
  turn.out.push_back(CloseNode{name, incarnation, cut});
  if (released) return;  // told when it was
  turn.Record("node_lost", {{"node", name}, {"reason", reason}});
  if (!live) return MaybePlanGeneration(turn);  // it may have been what all waited for
  if (s.phase == Phase::kRunning) {
    s.generation.ended_for = Cause::kNodeLost;
    s.generation.blamed_node = name;
    EndGeneration(turn, true, absl::StrCat("node ", name, " was lost: ", reason),
                  v1::StopWorkers::ABORT);
  }
  AfterStop(turn);
}

// Each message moves a node's deadline on, so the earliest one that was found stays a lower bound,
// and a look at all nodes for each message is spared.
void LookUpSilence(State& state) {
  if (state.silence_ns != 0 || state.spec.lease_seconds() <= 0) return;
  const int64_t silence = SilenceNs(state);
  for (const auto& [name, node] : state.nodes) {
    const int64_t due_ns = node.last_heard_ns + silence;
    if (state.silence_ns == 0 || due_ns < state.silence_ns) state.silence_ns = due_ns;
  }
}

void LoseSilentNodes(Turn& turn) {
  State& s = turn.state;
  if (s.silence_ns == 0 || turn.now_ns < s.silence_ns) return;
  s.silence_ns = 0;
  const double lease = s.spec.lease_seconds();
  const int64_t silence = SilenceNs(s);
  std::vector<std::string> silent;
  for (const auto& [name, node] : s.nodes) {
    if (turn.now_ns - node.last_heard_ns >= silence) silent.push_back(name);
  }
  for (const auto& name : silent) {
    LoseNode(turn, name, absl::StrCat("nothing heard for ", lease + 1, " s"));
  }
}

}  // namespace ddprun::coordinator
