#include "launcher/coordinator/ranks.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/strikes.h"

namespace ddprun::coordinator {
namespace {

// More than any job of ours, and few enough to be kept in memory.
constexpr uint64_t kRanksMax = 1'000'000;

struct Candidate {
  const Node* node = nullptr;
  bool member = false;  // of the generation before
  size_t place = 0;     // there
};

// Who takes part, the first ones first: members keep their places (they hold warm caches); then
// wishes, then the order in which they joined.
bool Before(const Candidate& a, const Candidate& b) {
  if (a.member != b.member) return a.member;
  if (a.member) return a.place < b.place;
  const auto key = [](const Node& node) {
    const bool wishes = node.node_rank_wanted >= 0;
    return std::tuple(!wishes, wishes ? node.node_rank_wanted : 0, node.join_order);
  };
  return key(*a.node) < key(*b.node);
}

// Each where it wishes to be, else where it was, else where room is left.
std::vector<const Node*> Order(const std::vector<Candidate>& candidates) {
  std::vector<const Node*> order(candidates.size(), nullptr);
  std::vector<const Node*> rest;
  auto put = [&order](size_t place, const Node* node) {
    if (place >= order.size() || order[place] != nullptr) return false;
    order[place] = node;
    return true;
  };
  std::vector<const Candidate*> unplaced;
  for (const Candidate& candidate : candidates) {
    const int32_t wish = candidate.node->node_rank_wanted;
    if (wish < 0 || !put(static_cast<size_t>(wish), candidate.node)) unplaced.push_back(&candidate);
  }
  for (const Candidate* candidate : unplaced) {
    if (!candidate->member || !put(candidate->place, candidate->node)) {
      rest.push_back(candidate->node);
    }
  }
  size_t place = 0;
  for (const Node* node : rest) {
    while (order[place] != nullptr) ++place;
    order[place] = node;
  }
  return order;
}

}  // namespace

Assignment AssignRanks(const v1::JobSpec& spec, const std::map<std::string, Node>& nodes,
                       const std::vector<Placement>& previous,
                       const std::set<std::string>& left_out) {
  std::vector<Candidate> candidates;
  for (const auto& [name, node] : nodes) {
    if (!MayTakePart(node) || left_out.contains(name)) continue;
    auto before = std::find_if(previous.begin(), previous.end(),
                               [&](const Placement& p) { return p.node == name; });
    candidates.push_back(
        {&node, before != previous.end(), static_cast<size_t>(before - previous.begin())});
  }
  Assignment result;
  if (candidates.size() < spec.nodes_min()) {
    result.reason = absl::StrCat(candidates.size(), " of ", spec.nodes_min(), " nodes are here");
    return result;
  }
  std::stable_sort(candidates.begin(), candidates.end(), Before);
  if (candidates.size() > spec.nodes_max()) candidates.resize(spec.nodes_max());
  for (const Node* node : Order(candidates)) {
    const uint32_t count = spec.processes_per_node() != 0 ? spec.processes_per_node() : node->slots;
    if (uint64_t{result.world_size} + count > kRanksMax) break;
    result.placements.push_back({node->name, result.world_size, count});
    result.world_size += count;
  }
  result.reason = absl::StrCat(result.placements.size(), " nodes, ", result.world_size, " ranks");
  return result;
}

}  // namespace ddprun::coordinator
