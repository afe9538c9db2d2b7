#include "launcher/coordinator/strikes.h"

#include <algorithm>

namespace ddprun::coordinator {
namespace {

constexpr size_t kStruckNodesMax = 16384;  // as many as may attach

void PutOut(NodeStrikes& entry, int64_t now_ns, double seconds) {
  entry.out = true;
  ++entry.times_out;
  entry.out_until_ns = now_ns + static_cast<int64_t>(seconds * kSecondNs);
}

double CooldownSeconds(double base, uint32_t times_out) {
  double seconds = base;
  for (uint32_t i = 0; i < times_out && seconds < kCooldownSecondsMax; ++i) seconds *= 2;
  return std::min(seconds, kCooldownSecondsMax);
}

// Without it the job would only wait.
bool IsNeeded(const State& state, const std::string& node) {
  return UsableNodes(state, node) < std::max<size_t>(state.spec.nodes_min(), 1);
}

}  // namespace

StrikeResult Strike(State& state, const std::string& node, bool whole) {
  const v1::Supervision& rules = state.spec.supervision();
  if (rules.node_strikes_limit() == 0 || node.empty()) return StrikeResult::kCounted;
  if (state.strikes.size() >= kStruckNodesMax && !state.strikes.contains(node)) {
    return StrikeResult::kCounted;
  }
  NodeStrikes& entry = state.strikes[node];
  if (entry.out) return StrikeResult::kCounted;
  const double window = state.spec.restart().window_seconds();
  if (window > 0 && state.now_ns - entry.last_ns >= static_cast<int64_t>(window * kSecondNs)) {
    entry.strikes = 0;
  }
  entry.last_ns = state.now_ns;
  entry.strikes = whole ? rules.node_strikes_limit() : entry.strikes + 1;
  if (entry.strikes < rules.node_strikes_limit()) return StrikeResult::kCounted;
  if (IsNeeded(state, node)) {
    entry.strikes = 0;
    return StrikeResult::kKept;
  }
  PutOut(entry, state.now_ns, CooldownSeconds(rules.node_cooldown_seconds(), entry.times_out));
  return StrikeResult::kLeftOut;
}

void LeaveOut(State& state, const std::string& node) {
  PutOut(state.strikes[node], state.now_ns, kCooldownSecondsMax);
}

bool MayTakePart(const Node& node) {
  return node.attached && !node.leaving && !node.released;
}

std::vector<std::string> LetIn(State& state) {
  std::vector<std::string> names;
  for (auto& [name, entry] : state.strikes) {
    if (!entry.out || entry.out_until_ns > state.now_ns) continue;
    entry.out = false;
    entry.strikes = 0;
    names.push_back(name);
  }
  return names;
}

std::set<std::string> LeftOut(const State& state) {
  std::set<std::string> names;
  for (const auto& [name, entry] : state.strikes) {
    if (entry.out) names.insert(name);
  }
  return names;
}

int64_t NextLetInNs(const State& state) {
  int64_t next = 0;
  for (const auto& [name, entry] : state.strikes) {
    if (entry.out && (next == 0 || entry.out_until_ns < next)) next = entry.out_until_ns;
  }
  return next;
}

size_t UsableNodes(const State& state, const std::string& but) {
  return static_cast<size_t>(
      std::count_if(state.nodes.begin(), state.nodes.end(), [&](const auto& entry) {
        if (!MayTakePart(entry.second) || entry.first == but) return false;
        auto struck = state.strikes.find(entry.first);
        return struck == state.strikes.end() || !struck->second.out;
      }));
}

}  // namespace ddprun::coordinator
