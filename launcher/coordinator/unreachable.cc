#include "launcher/coordinator/unreachable.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/net/text.h"

namespace ddprun::coordinator {
namespace {

constexpr size_t kNamesMax = 4;  // in a reason

// All its checks were good.
std::set<std::string> NodesWithWorkers(const Generation& g) {
  std::set<std::string> names;
  for (const Worker& worker : g.workers) {
    if (worker.started) names.insert(worker.node);
  }
  return names;
}

bool HasRankZero(const Generation& g, const std::string& node) {
  return !g.placements.empty() && g.placements.front().node == node;
}

// Those that have reached it; only rank 0's node is tried by more than one.
size_t HaveReached(const Generation& g, const std::string& accused) {
  if (!HasRankZero(g, accused)) return 0;
  size_t count = 0;
  for (const std::string& name : NodesWithWorkers(g)) {
    if (name != accused && !Accuses(g, name)) ++count;
  }
  return count;
}

// "node a at 10.0.0.1, node c at 10.0.0.3"
std::string TriedFrom(const State& state, const std::map<std::string, std::string>& reporters) {
  std::vector<std::string> texts;
  for (const auto& [name, reason] : reporters) {
    if (texts.size() == kNamesMax) break;
    auto node = state.nodes.find(name);
    const bool known = node != state.nodes.end() && !node->second.address.empty();
    texts.push_back(absl::StrCat(
        "node ", name, known ? absl::StrCat(" at ", net::Shown(node->second.address, 64)) : ""));
  }
  if (reporters.size() > kNamesMax) {
    texts.push_back(absl::StrCat(reporters.size() - kNamesMax, " more"));
  }
  return absl::StrJoin(texts, ", ");
}

std::string AwayText(const State& state, const std::string& accused,
                     const std::map<std::string, std::string>& reporters) {
  auto node = state.nodes.find(accused);
  const std::string address = node == state.nodes.end() ? "" : node->second.address;
  return absl::StrCat("node ", accused, " cannot be reached at its address ",
                      net::Shown(address, 64), " (tried from ", TriedFrom(state, reporters),
                      "): give the address or the card that the other nodes reach by "
                      "--advertise-addr or --iface on it");
}

}  // namespace

HealthVerdict JudgeHealth(const State& state) {
  const Generation& g = state.generation;
  HealthVerdict verdict;
  verdict.unfit = g.unhealthy;
  for (const auto& [accused, reporters] : g.unreached) {
    const size_t reached = HaveReached(g, accused);
    if (reached < reporters.size()) {
      verdict.away[accused] = AwayText(state, accused, reporters);
      continue;
    }
    for (const auto& [name, reason] : reporters) {
      verdict.unfit.try_emplace(name,
                                absl::StrCat(reason, " (", reached,
                                             reached == 1 ? " other node has" : " other nodes have",
                                             " reached it, so the trouble is node ", name, "'s)"));
    }
  }
  return verdict;
}

std::string AccusedNode(const State& state, const std::string& reporter,
                        const std::string& address) {
  if (address.empty()) return "";
  for (const Placement& placement : state.generation.placements) {
    auto node = state.nodes.find(placement.node);
    if (node == state.nodes.end() || placement.node == reporter) continue;
    if (node->second.address == address) return placement.node;
  }
  return "";
}

bool Accuses(const Generation& generation, const std::string& node) {
  return std::any_of(generation.unreached.begin(), generation.unreached.end(),
                     [&](const auto& entry) { return entry.second.contains(node); });
}

bool OthersStillTry(const Generation& generation, const std::string& accused) {
  if (!HasRankZero(generation, accused)) return false;
  const std::set<std::string> fit = NodesWithWorkers(generation);
  return std::any_of(generation.placements.begin(), generation.placements.end(),
                     [&](const Placement& placement) {
                       return placement.node != accused && !fit.contains(placement.node) &&
                              !generation.unhealthy.contains(placement.node) &&
                              !Accuses(generation, placement.node);
                     });
}

}  // namespace ddprun::coordinator
