// Who comes in: attaching, refusals with what helps against each, and their events.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/strikes.h"
#include "launcher/coordinator/turn.h"
#include "launcher/coordinator/versions.h"
#include "launcher/net/address.h"
#include "launcher/net/text.h"

namespace ddprun::coordinator {
namespace {

constexpr uint32_t kProtocolVersion = 1;
constexpr size_t kNodesMax = 16384;   // more than any job of ours; bounds memory against strangers
constexpr uint32_t kSlotsMax = 4096;  // workers of one node; as many threads as a machine may have
constexpr size_t kIncarnationMax = 64;
constexpr size_t kAddressMax = 256;
constexpr int kVersionsMax = 16;
// Something that a dead agent has sent may still be on its way.
constexpr int64_t kClaimMarginNs = kSecondNs / 4;
constexpr int32_t kExitRefused = 2;

v1::Refusal Refuse(v1::Refusal::Kind kind, std::string reason) {
  v1::Refusal refusal;
  refusal.set_kind(kind);
  refusal.set_reason(std::move(reason));
  refusal.set_exit_code(kExitRefused);
  return refusal;
}

// Its words alone, without a look at the job's state.
std::optional<v1::Refusal> MalformedHello(const NodeMessage& event) {
  using R = v1::Refusal;
  const v1::Hello& hello = event.message.hello();
  if (!net::IsName(hello.node())) {
    return Refuse(R::NAME,
                  absl::StrCat("a node's name is 1 to ", net::kNameBytesMax,
                               " of A-Z a-z 0-9 . _ - and not \"",
                               net::Shown(hello.node(), net::kNameBytesMax), "\": --node NAME"));
  }
  if (hello.incarnation().empty() || hello.incarnation().size() > kIncarnationMax ||
      hello.address().size() > kAddressMax || hello.node() != event.node ||
      hello.incarnation() != event.incarnation || hello.versions_size() > kVersionsMax) {
    return Refuse(R::MALFORMED, "its Hello is none that ddprun would send");
  }
  return std::nullopt;
}

std::optional<v1::Refusal> OtherJob(const State& state, const v1::Hello& hello) {
  using R = v1::Refusal;
  if (hello.protocol_version() != kProtocolVersion) {
    return Refuse(R::VERSION,
                  absl::StrCat("protocol version ", hello.protocol_version(), " is not ",
                               kProtocolVersion, ": install the same ddprun on every node"));
  }
  if (std::string reason = VersionMismatch(state.version, hello.version()); !reason.empty()) {
    return Refuse(R::VERSION, std::move(reason));
  }
  if (!hello.job_id().empty() && hello.job_id() != state.spec.job_id()) {
    return Refuse(R::JOB, absl::StrCat("this coordinator runs job ", state.spec.job_id(), ", not ",
                                       net::Shown(hello.job_id(), 64), ": --job-id"));
  }
  if (state.phase != Phase::kFinished) return std::nullopt;
  v1::Refusal refusal = Refuse(R::JOB_OVER, "the job is over");
  refusal.set_exit_code(state.exit_code);
  return refusal;
}

// L48: a rank that was asked for and cannot be had is an error.
std::optional<v1::Refusal> RankRefusal(const State& state, const v1::Hello& hello) {
  const int32_t wish = hello.node_rank_wanted();
  if (wish < 0) return std::nullopt;
  if (static_cast<uint32_t>(wish) >= state.spec.nodes_max()) {
    return Refuse(v1::Refusal::RANK,
                  absl::StrCat("node rank ", wish, " is none of 0 to ", state.spec.nodes_max() - 1,
                               " (--node-rank, --nnodes)"));
  }
  for (const auto& [name, node] : state.nodes) {
    if (name == hello.node() || node.released || node.node_rank_wanted != wish) continue;
    return Refuse(v1::Refusal::RANK, absl::StrCat("node rank ", wish, " is wished by node ", name,
                                                  " already: give each node its own --node-rank, "
                                                  "or none"));
  }
  return std::nullopt;
}

// A node of this name is here. It is the newcomer's predecessor, which counts until its lease is
// over, or lives: then it is heard from after the newcomer has come. One that has waited since an
// earlier coordinator has met the same command once more, started on each node to resume the job.
std::optional<v1::Refusal> NamesakeRefusal(Turn& turn, Node& here, const v1::Hello& hello) {
  const bool fresh = here.claimed_by != hello.incarnation();
  if (fresh) {
    here.claimed_by = hello.incarnation();
    here.claimed_ns = turn.now_ns;
  }
  const std::string who =
      absl::StrCat("a node named ", here.name,
                   " is here already (its address: ", net::Shown(here.address, 64), ")");
  const double lease = turn.state.spec.lease_seconds();
  const bool lives =
      here.attached && (lease <= 0 || here.last_heard_ns > here.claimed_ns + kClaimMarginNs);
  if (lives) {
    return Refuse(v1::Refusal::NAME,
                  who + (here.outlived ? "; it has waited for a new coordinator and takes part, so "
                                         "this one is not needed"
                                       : ": give this one another name with --node"));
  }
  const int64_t left_ns = here.last_heard_ns + SilenceNs(turn.state) - turn.now_ns;
  const double seconds = std::max(1.0, static_cast<double>(left_ns) / kSecondNs + 1);
  v1::Refusal refusal = Refuse(
      v1::Refusal::NAME,
      absl::StrCat(who, "; if its agent has ended, this one is let in when its lease is over"));
  refusal.set_retry_seconds(seconds);
  return refusal;
}

bool RunsSomewhere(const State& state, const std::string& node) {
  return std::any_of(state.last_placements.begin(), state.last_placements.end(),
                     [&](const Placement& placement) { return placement.node == node; });
}

std::string LoopbackText(const std::string& node, const std::string& address) {
  return absl::StrCat("node ", node, " gives ", net::Shown(address, 64),
                      " as its address, which no other machine can reach: --advertise-addr or "
                      "--iface on it");
}

// Loopback addresses and others in one job: the loopback one cannot be reached, so it is refused,
// or has to go; unless the job runs on it.
std::optional<v1::Refusal> AddressRefusal(Turn& turn, const v1::Hello& hello) {
  State& s = turn.state;
  if (hello.address().empty()) return std::nullopt;
  const bool loopback = net::NamesLoopback(hello.address());
  std::vector<std::string> go;
  for (const auto& [name, node] : s.nodes) {
    if (node.released || name == hello.node() || node.address.empty()) continue;
    if (net::NamesLoopback(node.address) == loopback) continue;
    if (loopback) return Refuse(v1::Refusal::ADDRESS, LoopbackText(hello.node(), hello.address()));
    if (RunsSomewhere(s, name)) {
      return Refuse(v1::Refusal::ADDRESS, absl::StrCat("the job runs on loopback addresses alone: ",
                                                       LoopbackText(name, node.address)));
    }
    go.push_back(name);
  }
  for (const std::string& name : go) {
    v1::CoordinatorMessage message;
    const std::string reason = LoopbackText(name, s.nodes.at(name).address);
    *message.mutable_refusal() = Refuse(v1::Refusal::ADDRESS, reason);
    turn.out.push_back(SendToNode{name, s.nodes.at(name).incarnation, message});
    LoseNode(turn, name, reason, /*cut=*/false);
  }
  return std::nullopt;
}

std::optional<v1::Refusal> VersionsRefusal(Turn& turn, const v1::Hello& hello) {
  State& s = turn.state;
  if (s.spec.train_config_json().empty() || hello.versions().empty()) return std::nullopt;
  const std::map<std::string, std::string> theirs(hello.versions().begin(), hello.versions().end());
  // The first node's count until it is gone before anything has run.
  const bool gone =
      s.versions_of != "the coordinator" && !s.ever_complete && !s.nodes.contains(s.versions_of);
  if (s.versions.empty() || gone) {
    s.versions = theirs;
    s.versions_of = hello.node();
    return std::nullopt;
  }
  const std::string differ = VersionsMismatch(s.versions, theirs);
  if (differ.empty()) return std::nullopt;
  return Refuse(v1::Refusal::VERSION,
                absl::StrCat("node ", hello.node(), " has ", differ, " as ",
                             s.versions_of == "the coordinator" ? "" : "node ", s.versions_of,
                             ": the trainer needs the same on all nodes"));
}

std::optional<v1::Refusal> RefusalOf(Turn& turn, const NodeMessage& event) {
  State& s = turn.state;
  const v1::Hello& hello = event.message.hello();
  if (auto refusal = MalformedHello(event)) return refusal;
  if (auto refusal = OtherJob(s, hello)) return refusal;
  if (hello.slots() > kSlotsMax || (hello.slots() == 0 && s.spec.processes_per_node() == 0)) {
    return Refuse(v1::Refusal::LIMIT,
                  absl::StrCat("node ", hello.node(), " offers ", hello.slots(),
                               " workers, and not 1 to ", kSlotsMax, ": --nproc"));
  }
  if (auto refusal = RankRefusal(s, hello)) return refusal;
  auto found = s.nodes.find(hello.node());
  if (found != s.nodes.end() && found->second.incarnation != hello.incarnation()) {
    if (!found->second.released) return NamesakeRefusal(turn, found->second, hello);
    s.nodes.erase(found);
  }
  if (s.nodes.size() >= kNodesMax) {
    return Refuse(v1::Refusal::LIMIT, absl::StrCat("more than ", kNodesMax, " nodes"));
  }
  if (auto refusal = VersionsRefusal(turn, hello)) return refusal;
  return AddressRefusal(turn, hello);
}

void SayNo(Turn& turn, const NodeMessage& event, const v1::Refusal& refusal) {
  v1::CoordinatorMessage message;
  *message.mutable_refusal() = refusal;
  turn.out.push_back(SendToNode{event.node, event.incarnation, message});
  turn.out.push_back(CloseNode{event.node, event.incarnation});
  // One that may try again does so twice a second; its first try is told.
  auto here = turn.state.nodes.find(event.node);
  const bool again = refusal.retry_seconds() > 0 && here != turn.state.nodes.end() &&
                     here->second.claimed_ns != turn.now_ns;
  if (!again) HandleJoinRefused(turn, {event.node, event.peer, refusal.kind(), refusal.reason()});
}

const char* KindName(int kind) {
  switch (static_cast<v1::Refusal::Kind>(kind)) {
    case v1::Refusal::SECRET:
      return "secret";
    case v1::Refusal::JOB:
      return "job";
    case v1::Refusal::VERSION:
      return "version";
    case v1::Refusal::CLOCK:
      return "clock";
    case v1::Refusal::NAME:
      return "name";
    case v1::Refusal::ADDRESS:
      return "address";
    case v1::Refusal::RUN_FOLDER:
      return "run_folder";
    case v1::Refusal::JOB_OVER:
      return "job_over";
    case v1::Refusal::LIMIT:
      return "limit";
    case v1::Refusal::TLS:
      return "tls";
    case v1::Refusal::MALFORMED:
      return "malformed";
    case v1::Refusal::RANK:
      return "rank";
    default:
      return "unknown";
  }
}

bool MayTell(const Turn& turn, const Tally& tally) {
  return tally.untold > 0 && (tally.told_ns == 0 || turn.now_ns >= tally.told_ns + kSecondNs);
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

// R8: it takes no part until another one is gone.
bool BecomesSpare(const State& state, const std::string& node) {
  if (UsableNodes(state, node) >= state.spec.nodes_max()) return true;
  const bool runs = state.phase != Phase::kWaiting && state.phase != Phase::kBackingOff;
  return runs && state.spec.membership().keep_size();
}

void Joined(Turn& turn, Node& node, const NodeMessage& event) {
  const v1::Hello& hello = event.message.hello();
  nlohmann::ordered_json fields = {
      {"node", node.name}, {"slots", node.slots}, {"address", node.address}};
  if (!hello.interface().empty()) fields["interface"] = net::Shown(hello.interface(), 32);
  if (BecomesSpare(turn.state, node.name)) fields["spare"] = true;
  turn.Record("node_joined", std::move(fields));
  StopStale(turn, node, hello);
}

}  // namespace

void HandleHello(Turn& turn, const NodeMessage& event) {
  State& s = turn.state;
  const v1::Hello& hello = event.message.hello();
  if (const std::optional<v1::Refusal> refusal = RefusalOf(turn, event)) {
    return SayNo(turn, event, *refusal);
  }
  auto [found, fresh] = s.nodes.try_emplace(event.node);
  Node& node = found->second;
  if (fresh) {
    node.name = event.node;
    node.incarnation = event.incarnation;
    node.join_order = s.joins++;
    node.link = ReliableLink<v1::CoordinatorMessage>(s.spec.lease_seconds() > 0);
    node.outlived = !hello.leader_token().empty() && hello.leader_token() != s.leader_token;
  }
  node.address = net::Shown(hello.address());
  node.slots = hello.slots();
  node.node_rank_wanted = std::max(hello.node_rank_wanted(), -1);
  node.master_port = hello.master_port();
  node.stream = event.stream;
  node.attached = true;
  node.last_heard_ns = turn.now_ns;
  turn.out.push_back(SendToNode{event.node, event.incarnation, WelcomeOf(s, node)});
  if (fresh) {
    Joined(turn, node, event);
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
  ConsiderGrowth(turn);
}

void HandleJoinRefused(Turn& turn, const JoinRefused& refused) {
  if (turn.state.phase == Phase::kFinished) return;
  Tally& tally = turn.state.refusals[refused.kind];
  ++tally.untold;
  tally.node = net::Shown(refused.node, net::kNameBytesMax);
  tally.peer = net::Shown(refused.peer, 64);
  tally.reason = net::Shown(refused.reason, 500);
  TellTallies(turn);
}

void TellTallies(Turn& turn) {
  for (auto& [kind, tally] : turn.state.refusals) {
    if (!MayTell(turn, tally)) continue;
    turn.Record("join_refused", {{"node", tally.node},
                                 {"peer", tally.peer},
                                 {"kind", KindName(kind)},
                                 {"reason", tally.reason},
                                 {"count", tally.untold}});
    tally.untold = 0;
    tally.told_ns = turn.now_ns;
  }
  Tally& rejected = turn.state.rejected;
  if (!MayTell(turn, rejected)) return;
  turn.Record("message_rejected",
              {{"node", rejected.node}, {"reason", rejected.reason}, {"count", rejected.untold}});
  rejected.untold = 0;
  rejected.told_ns = turn.now_ns;
}

int64_t NextTallyNs(const State& state) {
  int64_t next = 0;
  auto consider = [&next](const Tally& tally) {
    const int64_t due_ns = tally.told_ns + kSecondNs;
    if (tally.untold > 0 && (next == 0 || due_ns < next)) next = due_ns;
  };
  for (const auto& [kind, tally] : state.refusals) consider(tally);
  consider(state.rejected);
  return next;
}

}  // namespace ddprun::coordinator
