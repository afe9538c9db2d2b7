// Planned resizes: a node that leaves, or newcomers while fewer nodes than wanted take part. The
// generation ends with a checkpoint first where its workers can agree on one, and the next one
// costs nothing of the restart budget.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/coordinator/restart_policy.h"
#include "launcher/coordinator/strikes.h"
#include "launcher/coordinator/turn.h"
#include "launcher/net/text.h"

namespace ddprun::coordinator {
namespace {

// Newcomers that come together cost one resize: each waits for the next for a second.
constexpr int64_t kGrowAfterNs = kSecondNs;
constexpr int64_t kGrowAfterMaxNs = 5 * kSecondNs;
constexpr int32_t kExitNodeLost = 4;
constexpr size_t kNamesMax = 4;  // in a reason

bool MayResizeFree(const State& state) {
  return state.history.restarts_free < state.spec.restart().free_restarts_limit();
}

// Nodes that could take part and do not.
std::vector<std::string> Newcomers(const Turn& turn) {
  std::vector<std::string> names;
  const std::set<std::string> out = LeftOut(turn.state);
  std::set<std::string> members;
  for (const Placement& placement : turn.state.generation.placements)
    members.insert(placement.node);
  for (const auto& [name, node] : turn.state.nodes) {
    if (MayTakePart(node) && !out.contains(name) && !members.contains(name)) names.push_back(name);
  }
  return names;
}

bool MayGrow(const Turn& turn) {
  const State& s = turn.state;
  const Generation& g = s.generation;
  return s.phase == Phase::kRunning && !g.resize && !s.stop.requested && !s.pause.wanted &&
         !s.spec.membership().keep_size() && g.placements.size() < s.spec.nodes_max() &&
         g.exited == 0 && MayResizeFree(s);
}

// Workers that will take part in agreed steps are not ready yet: a checkpoint is worth the wait.
bool StillGetsReady(const State& state) {
  const Generation& g = state.generation;
  const bool speaks = !state.spec.train_config_json().empty() || g.ready > 0;
  return speaks && g.ready < g.workers.size();
}

size_t NodesAfterwards(const Turn& turn) {
  const State& s = turn.state;
  return std::min<size_t>(UsableNodes(s), s.spec.nodes_max());
}

std::string SizeText(const Turn& turn) {
  const size_t now = turn.state.generation.placements.size();
  const size_t then = NodesAfterwards(turn);
  if (now == then) return absl::StrCat("another node takes its place, ", now, " nodes as before");
  return absl::StrCat("resize from ", now, " to ", then, then == 1 ? " node" : " nodes");
}

std::string NamesOf(std::vector<std::string> names) {
  const size_t all = names.size();
  if (all > kNamesMax) names.resize(kNamesMax);
  std::string text = absl::StrJoin(names, ", ");
  if (all > kNamesMax) absl::StrAppend(&text, " and ", all - kNamesMax, " more");
  return absl::StrCat(all == 1 ? "node " : "nodes ", text);
}

void BeginResize(Turn& turn, const std::string& reason) {
  State& s = turn.state;
  Generation& g = s.generation;
  if (g.resize) {
    g.resize->reason = absl::StrCat(g.resize->reason, "; ", reason);
    return;
  }
  s.grow_ns = s.grow_since_ns = 0;
  g.resize = Resize{reason};
  turn.Record("resize_planned", {{"reason", reason}});
  // Workers that do not take part in agreed steps are stopped by signals.
  if (!AllReadyAndAlive(g) || s.pause.wanted) {
    return EndGeneration(turn, false, reason, v1::StopWorkers::STOP);
  }
  s.stop_deadline_ns = turn.now_ns + GraceNs(s);
  MaybeRequestEdge(turn);
}

void Release(Turn& turn, Node& node) {
  node.released = true;
  v1::CoordinatorMessage message;
  message.mutable_released()->set_reason(node.leave_reason);
  turn.Send(node, std::move(message));
  turn.Record("node_lost", {{"node", node.name},
                            {"reason", absl::StrCat("it left: ", node.leave_reason)},
                            {"planned", true}});
}

}  // namespace

void HandleLeaving(Turn& turn, Node& node, const v1::Leaving& leaving) {
  const std::string why = net::Shown(leaving.reason());
  if (!leaving.planned()) return LoseNode(turn, node.name, absl::StrCat("it left: ", why));
  if (node.leaving) return;
  node.leaving = true;
  node.leave_reason = why;
  if (node.stopped && node.stale_generation == 0) {
    ReleaseLeaving(turn);
    return MaybePlanGeneration(turn);  // it may have been what all waited for
  }
  if (turn.state.phase != Phase::kRunning) return;
  BeginResize(turn, absl::StrCat("node ", node.name, " leaves (", why, "): ", SizeText(turn)));
}

void ReleaseLeaving(Turn& turn) {
  for (auto& [name, node] : turn.state.nodes) {
    if (node.leaving && !node.released && node.stopped && node.stale_generation == 0) {
      Release(turn, node);
    }
  }
}

void ConsiderGrowth(Turn& turn) {
  State& s = turn.state;
  if (!MayGrow(turn) || StillGetsReady(s) || Newcomers(turn).empty()) {
    s.grow_ns = s.grow_since_ns = 0;
    return;
  }
  if (s.grow_since_ns == 0) s.grow_since_ns = turn.now_ns;
  s.grow_ns = std::min(turn.now_ns + kGrowAfterNs, s.grow_since_ns + kGrowAfterMaxNs);
}

void GrowIfDue(Turn& turn) {
  State& s = turn.state;
  if (s.grow_ns == 0 || turn.now_ns < s.grow_ns) return;
  s.grow_ns = s.grow_since_ns = 0;
  std::vector<std::string> newcomers = Newcomers(turn);
  if (!MayGrow(turn) || StillGetsReady(s) || newcomers.empty()) return;
  BeginResize(turn, absl::StrCat(NamesOf(std::move(newcomers)), " joined: ", SizeText(turn)));
}

bool WasResized(const State& state) {
  const Generation& g = state.generation;
  if (!g.resize || g.has_result) return false;
  if (g.end_reason != kFinishedReason) return true;
  // Every worker ended by itself, with 0: at the agreed step, or because the work is done.
  const bool told = g.agreement && g.agreement->told && g.agreement->stop;
  return told && g.agreement->edges.size() == g.workers.size();
}

void AfterResize(Turn& turn) {
  State& s = turn.state;
  s.best_step = std::max(s.best_step, s.generation.step);
  Decision decision;
  decision.restart = true;
  decision.free = MayResizeFree(s);
  decision.text = s.generation.resize->reason;
  const uint32_t used = RestartsCounted(s.spec.restart(), s.history, turn.now_ns);
  if (!decision.free && used >= s.spec.restart().max_restarts()) {
    return Finish(turn, {"failed", kExitNodeLost, "node_lost",
                         absl::StrCat(decision.text,
                                      ", but all restarts are used up, also those "
                                      "free of charge")});
  }
  CountRestart(s.spec.restart(), decision, turn.now_ns, s.history);
  nlohmann::ordered_json fields = {
      {"delay_seconds", 0.0},
      {"restarts_used", RestartsCounted(s.spec.restart(), s.history, turn.now_ns)},
      {"restarts_limit", s.spec.restart().max_restarts()},
      {"resume_step", s.committed_step}};
  if (decision.free) {
    fields["free"] = true;
    fields["reason"] = "a change of nodes is free of charge";
  }
  turn.Record("restart_scheduled", std::move(fields));
  WaitForNodes(turn);
}

}  // namespace ddprun::coordinator
