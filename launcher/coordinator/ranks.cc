#include "launcher/coordinator/ranks.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace ddprun::coordinator {

Assignment AssignRanks(const v1::JobSpec& spec, const std::map<std::string, Node>& nodes,
                       const std::vector<Placement>& previous,
                       const std::set<std::string>& left_out) {
  // (no wish, wish, was not there before, place before, join order): smaller comes first.
  using Key = std::tuple<bool, int32_t, bool, size_t, uint64_t>;
  std::vector<std::pair<Key, const Node*>> order;
  for (const auto& [name, node] : nodes) {
    if (!node.attached || left_out.contains(name)) continue;
    auto before = std::find_if(previous.begin(), previous.end(),
                               [&](const Placement& p) { return p.node == name; });
    const bool wish = node.node_rank_wanted >= 0;
    order.push_back({Key{!wish, wish ? node.node_rank_wanted : 0, before == previous.end(),
                         static_cast<size_t>(before - previous.begin()), node.join_order},
                     &node});
  }
  Assignment result;
  if (order.size() < spec.nodes_min()) {
    result.reason = absl::StrCat(order.size(), " of ", spec.nodes_min(), " nodes are here");
    return result;
  }
  // Who takes part: former members first (they hold warm caches), then by join order.
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a.first), std::get<1>(a.first), std::get<2>(a.first),
                    std::get<3>(a.first), std::get<4>(a.first)) <
           std::tie(std::get<0>(b.first), std::get<1>(b.first), std::get<2>(b.first),
                    std::get<3>(b.first), std::get<4>(b.first));
  });
  if (order.size() > spec.nodes_max()) order.resize(spec.nodes_max());
  for (const auto& [key, node] : order) {
    const uint32_t count = spec.processes_per_node() != 0 ? spec.processes_per_node() : node->slots;
    result.placements.push_back({node->name, result.world_size, count});
    result.world_size += count;
  }
  result.reason = absl::StrCat(order.size(), " nodes, ", result.world_size, " ranks");
  return result;
}

}  // namespace ddprun::coordinator
