// Nodes that do not get fit for a generation: by their own health check, or because others do not
// reach their address (unreachable.h).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/turn.h"
#include "launcher/coordinator/unreachable.h"

namespace ddprun::coordinator {
namespace {

constexpr int32_t kExitRefused = 2;
// All nodes try at the same time, for the same time.
constexpr int64_t kAwaitOthersNs = kSecondNs;

}  // namespace

void HandleUnhealthy(Turn& turn, const Node& node, const v1::NodeUnhealthy& unhealthy) {
  State& s = turn.state;
  Generation& g = s.generation;
  const std::string accused = AccusedNode(s, node.name, unhealthy.unreachable_address());
  std::string reason = unhealthy.reason();
  if (accused.empty()) {
    g.unhealthy[node.name] = reason;
    reason = absl::StrCat("node ", node.name, " is unhealthy: ", reason);
  } else if (!g.unreached.contains(node.name)) {
    g.unreached[accused].try_emplace(node.name, reason);
  }
  if (s.phase != Phase::kRunning) return;
  if (!accused.empty() && OthersStillTry(g, accused)) {
    const int64_t until_ns = turn.now_ns + kAwaitOthersNs;
    const bool sooner = g.await_cause_until_ns != 0 && g.await_cause_until_ns < until_ns;
    if (!sooner) g.await_cause_until_ns = until_ns;
    return;
  }
  EndGeneration(turn, true, reason, v1::StopWorkers::ABORT);
}

void SendUnreachableAway(Turn& turn) {
  State& s = turn.state;
  for (const auto& [name, reason] : JudgeHealth(s).away) {
    auto found = s.nodes.find(name);
    if (found == s.nodes.end()) continue;
    v1::CoordinatorMessage message;
    message.mutable_refusal()->set_kind(v1::Refusal::ADDRESS);
    message.mutable_refusal()->set_reason(reason);
    message.mutable_refusal()->set_exit_code(kExitRefused);
    turn.out.push_back(SendToNode{name, found->second.incarnation, message});
    HandleJoinRefused(turn, {name, found->second.address, v1::Refusal::ADDRESS, reason});
    s.sent_away = reason;
    LoseNode(turn, name, reason, /*cut=*/false);
  }
}

}  // namespace ddprun::coordinator
