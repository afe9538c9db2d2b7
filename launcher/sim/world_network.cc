// The network: streams between agents and the coordinator, and what becomes of the messages on
// them.
//
// Worse than gRPC on purpose: on a standing stream a message may be lost, doubled and overtaken.
// Only the first message of each direction (Hello, Welcome or Refusal) is never lost without the
// stream's end, since nothing repeats it. A cut-off node loses everything, and keep-alive ends its
// stream later.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/sim/world.h"

namespace ddprun::sim {
namespace {

constexpr int64_t kStragglerNs = kSecondNs;
constexpr int64_t kHandshakeMinNs = 300 * kMillisecondNs;  // to notice that it came to nothing
constexpr int64_t kHandshakeMaxNs = 1500 * kMillisecondNs;

}  // namespace

int64_t World::Delay() {
  const NetworkPlan& network = scenario_.network;
  int64_t delay_ns = network.delay_min_ns;
  if (network.delay_max_ns > network.delay_min_ns) {
    delay_ns = random_.Between(network.delay_min_ns, network.delay_max_ns);
  }
  if (network.straggler > 0 && random_.Chance(network.straggler)) {
    delay_ns += random_.Between(0, kStragglerNs);
  }
  return delay_ns;
}

void World::Connect(SimNode& node) {
  if (node.stream != 0) BreakStream(node.stream, -1, Delay());
  const auto index = static_cast<uint32_t>(&node - nodes_.data());
  streams_.push_back({index, node.agent_number, false});
  node.stream = static_cast<uint32_t>(streams_.size() - 1);
  StepAgent(node, agent::Connected{node.stream});
}

void World::SendUpstream(SimNode& node, v1::AgentMessage message) {
  const uint32_t id = node.stream;
  if (id == 0) return;
  if (streams_[id].broken) return;
  if (tracing()) Say(node.plan.name, absl::StrCat("-> ", Describe(message)));
  const bool first = message.has_hello();
  const bool cut = now_ns_ < node.cut_up_until_ns;
  SimEvent event{.what = What::kUp, .node = streams_[id].node, .id = id};
  if (cut || (!first && random_.Chance(scenario_.network.loss))) {
    if (!first) return;
    queue_.Push({.when_ns = now_ns_ + random_.Between(kHandshakeMinNs, kHandshakeMaxNs),
                 .what = What::kStreamBreaks,
                 .id = id});
    return;
  }
  if (!first && random_.Chance(scenario_.network.duplicate)) {
    event.when_ns = now_ns_ + Delay();
    event.slot = up_.Put(message);
    queue_.Push(event);
  }
  event.when_ns = now_ns_ + Delay();
  event.slot = up_.Put(std::move(message));
  queue_.Push(event);
}

void World::SendDownstream(uint32_t id, v1::CoordinatorMessage message) {
  SimNode& node = nodes_[streams_[id].node];
  if (streams_[id].broken) return;
  if (tracing()) {
    Say("coordinator", absl::StrCat("-> ", node.plan.name, " ", Describe(message)));
  }
  const bool first = message.has_welcome() || message.has_refusal();
  const bool cut = now_ns_ < node.cut_down_until_ns;
  SimEvent event{.what = What::kDown, .node = streams_[id].node, .id = id};
  if (cut || (!first && random_.Chance(scenario_.network.loss))) {
    if (!first) return;
    queue_.Push({.when_ns = now_ns_ + random_.Between(kHandshakeMinNs, kHandshakeMaxNs),
                 .what = What::kStreamBreaks,
                 .id = id});
    return;
  }
  if (!first && random_.Chance(scenario_.network.duplicate)) {
    event.when_ns = now_ns_ + Delay();
    event.slot = down_.Put(message);
    queue_.Push(event);
  }
  event.when_ns = now_ns_ + Delay();
  event.slot = down_.Put(std::move(message));
  queue_.Push(event);
}

// Each side learns of it in its own time (−1: it knows already, or never will).
void World::BreakStream(uint32_t id, int64_t agent_learns_ns, int64_t server_learns_ns) {
  Stream& stream = streams_[id];
  if (stream.broken) return;
  stream.broken = true;
  if (agent_learns_ns >= 0) {
    queue_.Push({.when_ns = now_ns_ + agent_learns_ns,
                 .what = What::kBroken,
                 .node = stream.node,
                 .id = id});
  }
  if (server_learns_ns >= 0) {
    queue_.Push({.when_ns = now_ns_ + server_learns_ns,
                 .what = What::kDetached,
                 .node = stream.node,
                 .id = id});
  }
}

// The server takes Hello first, and knows one stream of each incarnation: the newest. What an older
// one still brings is for the core to drop.
void World::Arrived(const SimEvent& event) {
  const Stream& stream = streams_[event.id];
  SimNode& node = nodes_[event.node];
  coordinator::NodeMessage said{node.plan.name, absl::StrCat("i", stream.agent),
                                up_.Take(event.slot), event.id};
  uint32_t& present = node.server_streams[stream.agent];
  if (!coordinator_up_) {
    if (said.message.has_hello()) BreakStream(event.id, Delay(), -1);  // nobody listens
    return;
  }
  if (said.message.has_hello()) present = event.id;
  if (tracing())
    Say("coordinator", absl::StrCat("<- ", node.plan.name, " ", Describe(said.message)));
  StepCoordinator(said);
}

void World::Detached(const SimEvent& event) {
  const Stream& stream = streams_[event.id];
  SimNode& node = nodes_[event.node];
  uint32_t& present = node.server_streams[stream.agent];
  if (present != event.id) return;
  present = 0;
  if (tracing()) Say("coordinator", absl::StrCat(node.plan.name, " is detached"));
  StepCoordinator(coordinator::NodeDetached{node.plan.name, absl::StrCat("i", stream.agent),
                                            "its connection broke", event.id});
}

void World::Broken(SimNode& node, const SimEvent& event) {
  if (!node.agent_alive || node.stream != event.id) return;
  node.stream = 0;
  if (tracing()) Say(node.plan.name, "its stream broke");
  StepAgent(node, agent::Disconnected{"the connection to the coordinator broke", event.id});
}

}  // namespace ddprun::sim
