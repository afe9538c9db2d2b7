#include "launcher/agent/core.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/agent/core_turn.h"

namespace ddprun::agent {
namespace {

constexpr int64_t kReconnectNs = kSecondNs / 4;   // between two tries; shorter than any lease
constexpr int64_t kGiveUpNs = 60 * kSecondNs;     // L19: an agent without its coordinator ends
constexpr int64_t kGiveUpLateNs = 5 * kSecondNs;  // … the least that it tries
constexpr int64_t kRetryNs = kSecondNs / 2;       // between two tries where a refusal may pass
constexpr size_t kHeartbeatsKept = 64;            // unanswered ones; older than any lease in use

v1::AgentMessage HelloOf(const State& s) {
  v1::AgentMessage message;
  auto* hello = message.mutable_hello();
  hello->set_protocol_version(1);
  hello->set_job_id(s.job_id.empty() ? s.identity.job_id : s.job_id);
  hello->set_node(s.identity.node);
  hello->set_boot_id(s.identity.boot_id);
  hello->set_incarnation(s.identity.incarnation);
  hello->set_slots(s.identity.slots);
  hello->set_node_rank_wanted(s.identity.node_rank_wanted);
  hello->set_leader_token(s.leader_token);
  hello->set_address(s.identity.address);
  hello->set_version(s.identity.version);
  hello->set_link(s.link_number);
  hello->mutable_versions()->insert(s.identity.versions.begin(), s.identity.versions.end());
  hello->set_master_port(s.identity.master_port);
  hello->set_interface(s.identity.interface);
  if (s.running) {
    auto* running = hello->add_running();
    running->set_generation(s.running->number);
    running->set_stopping(s.running->stopping);
    for (const auto& [rank, worker] : s.running->workers) *running->add_workers() = worker;
  }
  message.set_ack(s.link.last_received());
  return message;
}

void SendHeartbeat(Turn& turn) {
  State& s = turn.state;
  v1::AgentMessage message;
  auto* heartbeat = message.mutable_heartbeat();
  heartbeat->set_sequence(++s.heartbeat_sequence);
  heartbeat->set_clock_offset_ns(s.clock_offset_ns);
  heartbeat->set_clock_uncertainty_ns(s.clock_uncertainty_ns);
  heartbeat->set_generation(s.newest_generation);
  heartbeat->set_state(!s.running            ? v1::NODE_IDLE
                       : s.running->stopping ? v1::NODE_STOPPING
                                             : v1::NODE_RUNNING);
  message.set_ack(s.link.last_received());
  s.heartbeats_sent_ns[s.heartbeat_sequence] = turn.now_ns;
  if (s.heartbeats_sent_ns.size() > kHeartbeatsKept) {
    s.heartbeats_sent_ns.erase(s.heartbeats_sent_ns.begin());
  }
  turn.out.push_back(SendUp{std::move(message)});
  for (auto& again : s.link.Unacknowledged()) turn.out.push_back(SendUp{std::move(again)});
  s.next_heartbeat_ns = turn.now_ns + static_cast<int64_t>(s.heartbeat_seconds * kSecondNs);
}

// A time that a coordinator gives, as far as it is one: beyond a month (or no number) the moments
// made of it would not fit.
double SaneSeconds(double seconds) {
  constexpr double kMonth = 31 * 86400.0;
  return seconds > 0 ? std::min(seconds, kMonth) : 0;
}

void HandleWelcome(Turn& turn, const v1::Welcome& welcome, uint64_t ack) {
  State& s = turn.state;
  // Not a question of whether the coordinator knew this node when it wrote: its first Welcome may
  // have been lost with the stream.
  if (welcome.link() != s.link_number || welcome.leader_token() != s.leader_token) {
    s.pending.reset();  // ordered by a past that the coordinator has given up
    s.link = ReliableLink<v1::AgentMessage>(/*retain=*/SaneSeconds(welcome.lease_seconds()) > 0);
    s.heartbeats_sent_ns.clear();
    if (s.leave == Leave::kPlanned) SayLeaving(turn);  // nobody knows of it any more
  } else {
    s.link.Receive(0, ack);
  }
  LeaveAfterWelcome(turn);
  s.attached = true;
  s.give_up_ns = s.retry_ns = 0;
  s.last_heard_ns = turn.now_ns;
  s.job_id = welcome.job_id();
  s.leader_token = welcome.leader_token();
  s.link_number = welcome.link();
  s.lease_seconds = SaneSeconds(welcome.lease_seconds());
  s.heartbeat_seconds = SaneSeconds(welcome.heartbeat_seconds());
  if (s.heartbeat_seconds > 0) SendHeartbeat(turn);
}

bool LeaseIsGood(const Turn& turn) {
  return turn.state.lease_seconds == 0 || turn.now_ns < turn.state.lease_until_ns;
}

int64_t LeaseMilliseconds(const Turn& turn) {
  if (turn.state.lease_seconds == 0) return 0;
  return std::max<int64_t>(turn.state.lease_until_ns - turn.now_ns, 1'000'000) / 1'000'000;
}

// Begins the generation that waits, once nothing old runs and the lease is good (a message may be
// older than a pause of this machine).
void StartPending(Turn& turn) {
  State& s = turn.state;
  if (!s.pending || s.running || !LeaseIsGood(turn)) return;
  v1::StartWorkers order = *std::exchange(s.pending, std::nullopt);
  s.running = RunningGeneration{order.generation(), order, false, {}};
  const int64_t lease_until_ns = s.lease_seconds == 0 ? 0 : s.lease_until_ns;
  const uint64_t generation = order.generation();
  turn.out.push_back(SpawnKeeper{std::move(order), LeaseMilliseconds(turn), lease_until_ns});
  if (std::exchange(s.pause_pending, false)) {
    turn.out.push_back(SignalWorkers{generation, SIGSTOP});
  }
}

// The lease counts from the moment at which the answered heartbeat was sent, which is never later
// than when the coordinator heard it.
void HandleAnswer(Turn& turn, const CoordinatorSaid& said) {
  State& s = turn.state;
  const auto& answer = said.message.heartbeat_answer();
  auto sent = s.heartbeats_sent_ns.find(answer.sequence());
  if (sent == s.heartbeats_sent_ns.end()) return;
  const int64_t until = sent->second + static_cast<int64_t>(s.lease_seconds * kSecondNs);
  s.last_heard_ns = std::max(s.last_heard_ns, sent->second);
  s.heartbeats_sent_ns.erase(s.heartbeats_sent_ns.begin(), std::next(sent));
  s.clock_offset_ns = said.clock_offset_ns;
  s.clock_uncertainty_ns = said.clock_uncertainty_ns;
  if (until <= s.lease_until_ns) return;
  s.lease_until_ns = until;
  if (s.running) turn.out.push_back(RenewLease{LeaseMilliseconds(turn), until});
  StartPending(turn);
}

void HandleStart(Turn& turn, const v1::StartWorkers& order) {
  State& s = turn.state;
  if (order.generation() <= s.newest_generation || s.job_over) return;
  s.newest_generation = order.generation();
  s.pending = order;
  s.pause_pending = false;
  if (s.running) return StopRunning(turn, v1::StopWorkers::KILL, "a newer generation begins");
  StartPending(turn);
}

void HandleStop(Turn& turn, const v1::StopWorkers& order) {
  State& s = turn.state;
  if (s.pending && s.pending->generation() == order.generation()) s.pending.reset();
  if (s.running && s.running->number == order.generation()) {
    s.running->stopping = true;
    turn.out.push_back(OrderKeeper{order});
    return;
  }
  // It never began here, or is over: from now on it cannot begin.
  s.newest_generation = std::max<uint64_t>(s.newest_generation, order.generation());
  v1::AgentMessage message;
  message.mutable_generation_stopped()->set_generation(order.generation());
  message.mutable_generation_stopped()->set_reason("nothing of it runs here");
  turn.Fact(std::move(message));
}

// Without one: until when it is awaited.
void AwaitCoordinator(Turn& turn) {
  State& s = turn.state;
  if (s.give_up_ns != 0) return;
  const auto join_ns = static_cast<int64_t>(s.join_timeout_seconds * kSecondNs);
  // A node that was stopped for long has used up its time: the job has gone on, or is over.
  s.give_up_ns = s.link_number == 0
                     ? turn.now_ns + join_ns
                     : std::max(s.last_heard_ns + kGiveUpNs, turn.now_ns + kGiveUpLateNs);
}

// A refusal for good ends the agent. One that may pass (a predecessor of this name is still within
// its lease) is tried again for as long as a coordinator would be awaited.
void HandleRefusal(Turn& turn, const v1::Refusal& refusal) {
  State& s = turn.state;
  s.attached = false;
  s.next_heartbeat_ns = 0;
  if (s.running) StopRunning(turn, v1::StopWorkers::KILL, "the coordinator refused this node");
  if (refusal.retry_seconds() > 0) {
    AwaitCoordinator(turn);
    s.retry_ns = turn.now_ns + kRetryNs;
    turn.out.push_back(Reconnect{s.retry_ns});
    return;
  }
  if (refusal.kind() == v1::Refusal::JOB_OVER) {
    return turn.Finish({refusal.exit_code(), absl::StrCat("refused: ", refusal.reason())});
  }
  turn.Finish({refusal.exit_code() != 0 ? refusal.exit_code() : kExitRefused,
               absl::StrCat("refused: ", refusal.reason())});
}

void HandleSignal(Turn& turn, const v1::SignalWorkers& order) {
  State& s = turn.state;
  if (s.running && s.running->number == order.generation()) {
    turn.out.push_back(SignalWorkers{order.generation(), order.signal()});
    return;
  }
  if (s.pending && s.pending->generation() == order.generation()) {
    // One that waits begins paused; another signal has nobody to go to.
    if (order.signal() == SIGSTOP) {
      s.pause_pending = true;
      return;
    }
    if (order.signal() == SIGCONT) s.pause_pending = false;
  }
  v1::AgentMessage message;
  message.mutable_workers_signalled()->set_generation(order.generation());
  message.mutable_workers_signalled()->set_signal(order.signal());
  turn.Fact(std::move(message));
}

void HandleExamine(Turn& turn, uint64_t generation) {
  if (turn.state.running && turn.state.running->number == generation) {
    turn.out.push_back(ExamineWorkers{generation});
    return;
  }
  v1::AgentMessage message;  // nothing of it runs here
  message.mutable_workers_examined()->set_generation(generation);
  turn.Fact(std::move(message));
}

// The generation whose workers this message is for; 0: it is for no worker.
uint64_t GenerationOf(const v1::CoordinatorMessage& message) {
  using M = v1::CoordinatorMessage;
  switch (message.message_case()) {
    case M::kValue:
      return message.value().generation();
    case M::kExchangeRefused:
      return message.exchange_refused().generation();
    case M::kEdgeRequest:
      return message.edge_request().generation();
    case M::kCheckpointAt:
      return message.checkpoint_at().generation();
    case M::kCheckpointSettled:
      return message.checkpoint_settled().generation();
    default:
      return 0;
  }
}

void HandleCoordinator(Turn& turn, const CoordinatorSaid& said) {
  State& s = turn.state;
  const v1::CoordinatorMessage& message = said.message;
  using M = v1::CoordinatorMessage;
  if (message.has_welcome()) return HandleWelcome(turn, message.welcome(), message.ack());
  // Before its Welcome a stream has nothing to say: what comes then was left over by the stream
  // before, and numbers and lease may be about to change.
  if (!s.attached && !message.has_refusal()) return;
  if (!s.link.Receive(message.sequence(), message.ack())) return;
  const uint64_t running = s.running ? s.running->number : 0;
  switch (message.message_case()) {
    case M::kRefusal:
      return HandleRefusal(turn, message.refusal());
    case M::kHeartbeatAnswer:
      return HandleAnswer(turn, said);
    case M::kStartWorkers:
      return HandleStart(turn, message.start_workers());
    case M::kStopWorkers:
      return HandleStop(turn, message.stop_workers());
    case M::kSignalWorkers:
      return HandleSignal(turn, message.signal_workers());
    case M::kJobEnded:
      return HandleJobEnded(turn, message.job_ended());
    case M::kValue:
    case M::kExchangeRefused:
    case M::kEdgeRequest:
    case M::kCheckpointAt:
    case M::kCheckpointSettled:
      // L26: workers of a generation hear of no other.
      if (running != 0 && GenerationOf(message) == running) turn.out.push_back(TellWorker{message});
      return;
    case M::kReleased:
      return HandleReleased(turn, message.released());
    case M::kExamineWorkers:
      return HandleExamine(turn, message.examine_workers().generation());
    case M::kWelcome:
    case M::kChallenge:  // of the handshake, which is the stream's
    case M::MESSAGE_NOT_SET:
      return;
  }
}

void HandleConnected(Turn& turn, const Connected& event) {
  turn.state.stream = event.stream;
  turn.state.attached = false;
  turn.state.retry_ns = 0;
  turn.out.push_back(SendUp{HelloOf(turn.state)});
}

void HandleDisconnected(Turn& turn, const Disconnected& event) {
  State& s = turn.state;
  const bool was_attached = s.attached;
  s.attached = false;
  s.next_heartbeat_ns = 0;
  if (s.job_over && !s.running) return turn.Finish({s.job_exit_code, "the job is over"});
  if (was_attached && s.lease_seconds == 0) {
    // Without a lease the coordinator counts this node as lost at once.
    s.job_over = true;
    s.job_exit_code = kExitCoordinatorLost;
    if (s.running) return StopRunning(turn, v1::StopWorkers::ABORT, event.reason);
    return turn.Finish({kExitCoordinatorLost, event.reason});
  }
  if (s.leave == Leave::kPlanned && !s.running) return EndLeaving(turn);  // nobody waits for us
  AwaitCoordinator(turn);
  if (s.retry_ns <= turn.now_ns) turn.out.push_back(Reconnect{turn.now_ns + kReconnectNs});
}

void HandleKeeperGone(Turn& turn, const KeeperGone& gone) {
  State& s = turn.state;
  if (!s.running || s.running->number != gone.generation) return;
  s.running.reset();
  s.identity.master_port = gone.master_port;
  v1::AgentMessage message;
  auto* stopped = message.mutable_generation_stopped();
  stopped->set_generation(gone.generation);
  stopped->set_reason(gone.reason);
  stopped->set_keeper_died(gone.died);
  stopped->set_master_port(gone.master_port);
  for (int32_t pid : gone.unkillable_pids) stopped->add_unkillable_pids(pid);
  turn.Fact(std::move(message));
  if (s.job_over) return turn.Finish({s.job_exit_code, "the job is over"});
  if (s.leave == Leave::kAtOnce || (s.leave == Leave::kPlanned && !s.attached)) {
    return EndLeaving(turn);
  }
  StartPending(turn);
}

void GiveUp(Turn& turn) {
  State& s = turn.state;
  if (s.link_number != 0) {
    return turn.Finish({kExitCoordinatorLost, absl::StrCat("the coordinator did not answer for ",
                                                           kGiveUpNs / kSecondNs, " s")});
  }
  turn.Finish({kExitNoCoordinator,
               absl::StrCat("no coordinator let this node in for ", s.join_timeout_seconds, " s")});
}

void HandleTime(Turn& turn) {
  State& s = turn.state;
  if (s.attached && s.heartbeat_seconds > 0 && turn.now_ns >= s.next_heartbeat_ns)
    SendHeartbeat(turn);
  if (s.lease_until_ns != 0 && turn.now_ns >= s.lease_until_ns) {
    // What is pending may still begin, once a new lease says that the coordinator counts on it.
    s.lease_until_ns = 0;
    if (s.running) StopRunning(turn, v1::StopWorkers::KILL, "the lease ran out");
  }
  if (s.leave_deadline_ns != 0 && turn.now_ns >= s.leave_deadline_ns) LeaveAtOnce(turn);
  if (s.ended || s.attached || s.give_up_ns == 0 || turn.now_ns < s.give_up_ns || s.running) return;
  GiveUp(turn);
}

}  // namespace

std::vector<Effect> Step(State& state, const Event& event, int64_t now_ns) {
  std::vector<Effect> out;
  if (state.ended) return out;
  Turn turn{state, now_ns, out};
  if (const auto* e = std::get_if<Connected>(&event)) HandleConnected(turn, *e);
  if (const auto* e = std::get_if<Disconnected>(&event)) {
    if (e->stream == state.stream) HandleDisconnected(turn, *e);
  }
  if (const auto* e = std::get_if<CoordinatorSaid>(&event)) {
    if (e->stream == state.stream) HandleCoordinator(turn, *e);
  }
  if (const auto* e = std::get_if<KeeperSaid>(&event)) {
    if (state.running && state.running->number == e->generation) {
      if (e->fact.has_worker_started()) {
        state.running->workers[e->fact.worker_started().rank()] = e->fact.worker_started();
      }
      turn.Fact(e->fact);
    }
  }
  if (const auto* e = std::get_if<KeeperGone>(&event)) HandleKeeperGone(turn, *e);
  if (const auto* e = std::get_if<LeaveAsked>(&event)) HandleLeaveAsked(turn, *e);
  if (std::holds_alternative<TimePassed>(event)) HandleTime(turn);
  return out;
}

int64_t NextDeadlineNs(const State& state) {
  if (state.ended) return 0;
  int64_t next = 0;
  auto consider = [&next](int64_t when) {
    if (when != 0 && (next == 0 || when < next)) next = when;
  };
  if (state.attached && state.heartbeat_seconds > 0) consider(state.next_heartbeat_ns);
  if (state.running) consider(state.lease_until_ns);
  consider(state.leave_deadline_ns);
  if (!state.attached && !state.running) consider(state.give_up_ns);
  return next;
}

}  // namespace ddprun::agent
