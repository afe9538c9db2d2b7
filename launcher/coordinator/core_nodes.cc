// Who is here: attaching, heartbeats, loss.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/turn.h"

namespace ddprun::coordinator {
namespace {

constexpr uint32_t kProtocolVersion = 1;
constexpr int64_t kMarginNs = kSecondNs;  // between a node's lease and its replacement
constexpr size_t kNodesMax = 16384;  // more than any job of ours; bounds memory against strangers

std::string RefusalOf(const State& state, const v1::Hello& hello) {
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::StrCat("protocol version ", hello.protocol_version(), " is not ", kProtocolVersion,
                        ": install the same ddprun on every node");
  }
  if (!hello.job_id().empty() && hello.job_id() != state.spec.job_id()) {
    return absl::StrCat("this coordinator runs job ", state.spec.job_id(), ", not ",
                        hello.job_id());
  }
  if (state.phase == Phase::kFinished) return "the job is over";
  if (hello.node().empty() || hello.incarnation().empty())
    return "node name or incarnation is empty";
  if (state.nodes.size() >= kNodesMax) return absl::StrCat("more than ", kNodesMax, " nodes");
  auto found = state.nodes.find(hello.node());
  if (found != state.nodes.end() && found->second.incarnation != hello.incarnation()) {
    return absl::StrCat("a node named ", hello.node(),
                        " is here already (if its agent was restarted, try again when its lease "
                        "has run out)");
  }
  return "";
}

v1::CoordinatorMessage WelcomeOf(const State& state, const Node& node) {
  v1::CoordinatorMessage message;
  auto* welcome = message.mutable_welcome();
  welcome->set_protocol_version(kProtocolVersion);
  welcome->set_job_id(state.spec.job_id());
  welcome->set_leader_token(state.leader_token);
  welcome->set_lease_seconds(state.spec.lease_seconds());
  welcome->set_heartbeat_seconds(state.spec.lease_seconds() / 4);
  welcome->set_assigned_node(node.name);
  welcome->set_link(node.join_order + 1);
  message.set_ack(node.link.last_received());
  return message;
}

// Generations that a node still runs although they are over.
void StopStale(Turn& turn, Node& node, const v1::Hello& hello) {
  for (const auto& running : hello.running()) {
    const bool current = running.generation() == turn.state.generation.number &&
                         turn.IsMember(node.name) && turn.state.phase == Phase::kRunning;
    if (current) continue;
    // One of ours was counted out with its lease; an earlier coordinator's may be under a good one.
    if (hello.leader_token() != turn.state.leader_token) {
      node.stale_generation = running.generation();
    }
    v1::StopWorkers order;
    order.set_generation(running.generation());
    order.set_mode(v1::StopWorkers::KILL);
    order.set_reason("this generation is over");
    turn.Send(node, StopMessage(order));
  }
}

}  // namespace

int64_t SilenceNs(const State& state) {
  return static_cast<int64_t>(state.spec.lease_seconds() * kSecondNs) + kMarginNs;
}

void HandleHello(Turn& turn, const NodeMessage& event) {
  State& s = turn.state;
  const v1::Hello& hello = event.message.hello();
  std::string refusal = RefusalOf(s, hello);
  if (!refusal.empty()) {
    v1::CoordinatorMessage message;
    message.mutable_refusal()->set_reason(refusal);
    turn.out.push_back(SendToNode{event.node, event.incarnation, message});
    turn.out.push_back(CloseNode{event.node, event.incarnation});
    return;
  }
  auto [found, fresh] = s.nodes.try_emplace(event.node);
  Node& node = found->second;
  if (fresh) {
    node.name = event.node;
    node.incarnation = event.incarnation;
    node.join_order = s.joins++;
    node.link = ReliableLink<v1::CoordinatorMessage>(s.spec.lease_seconds() > 0);
  }
  node.address = hello.address();
  node.slots = hello.slots();
  node.node_rank_wanted = hello.node_rank_wanted();
  node.attached = true;
  node.last_heard_ns = turn.now_ns;
  turn.out.push_back(SendToNode{event.node, event.incarnation, WelcomeOf(s, node)});
  if (fresh) {
    turn.Record("node_joined",
                {{"node", node.name}, {"slots", node.slots}, {"address", node.address}});
    StopStale(turn, node, hello);
  } else {
    // An agent that never got its Welcome counts on an older link.
    const bool same_link =
        hello.link() == node.join_order + 1 && hello.leader_token() == s.leader_token;
    if (same_link) node.link.Receive(0, event.message.ack());
    for (auto& message : node.link.Unacknowledged()) {
      turn.out.push_back(SendToNode{event.node, event.incarnation, message});
    }
  }
  MaybePlanGeneration(turn);
}

void HandleHeartbeat(Turn& turn, Node& node, const v1::Heartbeat& heartbeat) {
  node.clock_offset_ns = heartbeat.clock_offset_ns();
  v1::CoordinatorMessage answer;
  answer.mutable_heartbeat_answer()->set_sequence(heartbeat.sequence());
  answer.mutable_heartbeat_answer()->set_heartbeat_sent_ns(heartbeat.sent_ns());
  answer.mutable_heartbeat_answer()->set_leader_token(turn.state.leader_token);
  answer.set_ack(node.link.last_received());
  turn.out.push_back(SendToNode{node.name, node.incarnation, answer});
  for (auto& message : node.link.Unacknowledged()) {
    turn.out.push_back(SendToNode{node.name, node.incarnation, message});
  }
}

// `name` by value: callers pass the name that lies in the node which is erased here.
void LoseNode(Turn& turn, std::string name, const std::string& reason) {
  State& s = turn.state;
  auto found = s.nodes.find(name);
  if (found == s.nodes.end() || s.phase == Phase::kFinished) return;
  const std::string incarnation = found->second.incarnation;
  const bool live = turn.IsMember(name) && !found->second.stopped;
  s.nodes.erase(found);
  turn.Record("node_lost", {{"node", name}, {"reason", reason}});
  turn.out.push_back(CloseNode{name, incarnation, /*cut=*/true});
  if (!live) return MaybePlanGeneration(turn);  // it may have been what all waited for
  if (s.phase == Phase::kRunning) {
    s.generation.ended_for = Cause::kNodeLost;
    s.generation.blamed_node = name;
    EndGeneration(turn, true, absl::StrCat("node ", name, " was lost: ", reason),
                  v1::StopWorkers::ABORT);
  }
  AfterStop(turn);
}

void LoseSilentNodes(Turn& turn) {
  const double lease = turn.state.spec.lease_seconds();
  if (lease <= 0) return;
  const int64_t silence = SilenceNs(turn.state);
  std::vector<std::string> silent;
  for (const auto& [name, node] : turn.state.nodes) {
    if (turn.now_ns - node.last_heard_ns >= silence) silent.push_back(name);
  }
  for (const auto& name : silent) {
    LoseNode(turn, name, absl::StrCat("nothing heard for ", lease + 1, " s"));
  }
}

}  // namespace ddprun::coordinator
