#include "tests/unit/core_harness.h"

#include <algorithm>

namespace ddprun::coordinator {
namespace {

constexpr int64_t kHeartbeatNs = kSecondNs / 2;

}  // namespace

CoreHarness::CoreHarness(uint32_t nodes) : nodes_(nodes) {
  spec.set_job_id("job");
  spec.set_nodes_min(nodes);
  spec.set_nodes_max(nodes);
  spec.set_train_config_json("{}");
  spec.set_grace_seconds(30);
  spec.set_lease_seconds(3);
  spec.set_join_timeout_seconds(60);
  v1::RestartPolicy& restart = *spec.mutable_restart();
  restart.set_max_restarts(3);
  restart.set_max_restarts_given(true);
  restart.set_min_uptime_seconds(30);
  restart.set_start_failures_limit(3);
  restart.set_no_progress_limit(3);
  restart.set_free_restarts_limit(100);
  restart.set_backoff_base_seconds(2);
  restart.set_backoff_max_seconds(60);
}

void CoreHarness::Do(const coordinator::Event& event) {
  for (Effect& effect : Step(state, event, now_ns)) {
    if (auto* record = std::get_if<RecordEvent>(&effect)) events.push_back(record->event);
    if (auto* finish = std::get_if<FinishJob>(&effect)) outcome = finish->outcome;
    if (auto* choose = std::get_if<ChooseResume>(&effect)) choosing = choose->generation;
    if (auto* commit = std::get_if<CommitCheckpoint>(&effect)) committing = *commit;
    if (std::holds_alternative<DropStaging>(effect)) ++dropped_stagings;
    if (auto* send = std::get_if<SendToNode>(&effect)) {
      auto agent = agents_.find(send->node);
      if (agent != agents_.end() && agent->second.incarnation == send->incarnation) {
        agent->second.link.Receive(send->message.sequence(), send->message.ack());
      }
      sent.emplace_back(send->node, send->message);
    }
  }
}

void CoreHarness::Submit() {
  Do(JobSubmitted{spec, "token", "test", past});
}

v1::Hello CoreHarness::HelloOf(const std::string& node, const std::string& incarnation) {
  v1::Hello hello;
  hello.set_protocol_version(1);
  hello.set_node(node);
  hello.set_incarnation(incarnation);
  hello.set_slots(2);
  hello.set_node_rank_wanted(-1);
  hello.set_address(node);
  return hello;
}

void CoreHarness::Join(const std::string& node, const std::string& incarnation, uint64_t runs) {
  v1::Hello hello = HelloOf(node, incarnation);
  if (runs != 0) hello.add_running()->set_generation(runs);
  JoinWith(hello);
}

void CoreHarness::JoinWith(const v1::Hello& hello) {
  v1::AgentMessage message;
  *message.mutable_hello() = hello;
  const std::string& node = hello.node();
  const std::string& incarnation = hello.incarnation();
  auto known = agents_.find(node);
  if (known == agents_.end() || !state.nodes.contains(node))
    agents_[node] = Agent{incarnation, ReliableLink<v1::AgentMessage>(), true};
  Do(NodeMessage{node, incarnation, message});
}

void CoreHarness::Detach(const std::string& node) {
  agents_[node].attached = false;
  Do(NodeDetached{node, agents_[node].incarnation, "its connection broke"});
}

void CoreHarness::Leave(const std::string& node, bool planned) {
  v1::AgentMessage message;
  message.mutable_leaving()->set_reason("maintenance");
  message.mutable_leaving()->set_planned(planned);
  Say(node, message);
}

void CoreHarness::RefuseAtTheDoor(const JoinRefused& refused) {
  Do(refused);
}

v1::Refusal CoreHarness::RefusalOf(const std::string& node) const {
  const v1::CoordinatorMessage* message = LastSent(node, v1::CoordinatorMessage::kRefusal);
  return message == nullptr ? v1::Refusal() : message->refusal();
}

std::vector<std::string> CoreHarness::Members() const {
  std::vector<std::string> names;
  for (const Placement& placement : state.generation.placements) names.push_back(placement.node);
  return names;
}

void CoreHarness::StopWithCheckpoint(uint64_t step) {
  const auto ranks = static_cast<uint32_t>(state.generation.workers.size());
  for (uint32_t rank = 0; rank < ranks; ++rank) Edge(rank, step);
  for (uint32_t rank = 0; rank < ranks; ++rank) Checkpoint(rank, step, v1::CheckpointFact::WRITTEN);
  Stored(true);
  for (uint32_t rank = 0; rank < ranks; ++rank) Exit(rank, 0);
  StopAll();
}

void CoreHarness::Say(const std::string& node, v1::AgentMessage message) {
  Agent& agent = agents_[node];
  if (!message.has_heartbeat() && !message.has_leaving()) message = agent.link.Send(message);
  message.set_ack(agent.link.last_received());
  Do(NodeMessage{node, agent.incarnation, message});
}

void CoreHarness::Choose(uint64_t step, std::vector<RejectedCheckpoint> rejected) {
  ResumeChosen chosen;
  chosen.generation = choosing.value_or(0);
  chosen.step = step;
  chosen.path = step == 0 ? "" : "step-" + std::to_string(step);
  chosen.rejected = std::move(rejected);
  choosing.reset();
  Do(chosen);
}

void CoreHarness::Stored(bool ok) {
  const CommitCheckpoint commit = committing.value();
  committing.reset();
  Do(CheckpointStored{commit.generation, commit.step, ok, "path", ok ? "" : "no space"});
}

void CoreHarness::Ask(v1::ControlRequest::Action action, int32_t signal) {
  Do(ControlAsked{action, signal});
}

void CoreHarness::Pass(double seconds) {
  PassSilently(seconds, {});
}

void CoreHarness::PassSilently(double seconds, const std::vector<std::string>& silent) {
  const int64_t end_ns = now_ns + static_cast<int64_t>(seconds * kSecondNs);
  int64_t heartbeat_ns = now_ns + kHeartbeatNs;
  while (true) {
    const int64_t deadline_ns = NextDeadlineNs(state);
    int64_t next_ns = std::min(heartbeat_ns, end_ns);
    if (deadline_ns != 0) next_ns = std::min(next_ns, deadline_ns);
    now_ns = std::max(now_ns, next_ns);
    if (deadline_ns != 0 && deadline_ns <= now_ns) Do(TimePassed{});
    if (heartbeat_ns <= now_ns) {
      heartbeat_ns += kHeartbeatNs;
      for (auto& [name, agent] : agents_) {
        if (!agent.attached || std::count(silent.begin(), silent.end(), name) > 0) continue;
        v1::AgentMessage message;
        message.mutable_heartbeat()->set_sequence(1);
        Say(name, message);
      }
    }
    if (now_ns >= end_ns) return;
  }
}

void CoreHarness::Start() {
  Submit();
  for (uint32_t i = 0; i < nodes_; ++i) Join(std::string(1, static_cast<char>('a' + i)));
  Choose();
}

void CoreHarness::ReadyAll() {
  for (uint32_t rank = 0; rank < state.generation.workers.size(); ++rank) {
    v1::AgentMessage message;
    message.mutable_worker_ready()->set_generation(state.generation.number);
    message.mutable_worker_ready()->set_rank(rank);
    Say(NodeOf(rank), message);
  }
}

void CoreHarness::Progress(uint64_t step) {
  v1::AgentMessage message;
  message.mutable_worker_progressed()->set_generation(state.generation.number);
  message.mutable_worker_progressed()->set_step(step);
  Say(NodeOf(0), message);
}

void CoreHarness::Fail(uint32_t rank, v1::WorkerFailed::Kind kind, int64_t time_ns) {
  v1::AgentMessage message;
  auto* failed = message.mutable_worker_failed();
  failed->set_generation(state.generation.number);
  failed->set_rank(rank);
  failed->set_kind(kind);
  failed->set_message("it said so");
  failed->set_time_ns(time_ns != 0 ? time_ns : now_ns);
  Say(NodeOf(rank), message);
}

void CoreHarness::Exit(uint32_t rank, int32_t code, int32_t signal, bool by_order,
                       int64_t time_ns) {
  v1::AgentMessage message;
  auto* exited = message.mutable_worker_exited();
  exited->set_generation(state.generation.number);
  exited->set_rank(rank);
  exited->set_exit_code(code);
  exited->set_signal(signal);
  exited->set_stopped_by_us(by_order);
  exited->set_time_ns(time_ns != 0 ? time_ns : now_ns);
  Say(NodeOf(rank), message);
}

void CoreHarness::Edge(uint32_t rank, uint64_t step) {
  v1::AgentMessage message;
  auto* edge = message.mutable_edge_reached();
  edge->set_generation(state.generation.number);
  edge->set_rank(rank);
  edge->set_id(state.generation.agreement ? state.generation.agreement->id : 0);
  edge->set_step(step);
  Say(NodeOf(rank), message);
}

void CoreHarness::Checkpoint(uint32_t rank, uint64_t step, v1::CheckpointFact::What what) {
  v1::AgentMessage message;
  auto* fact = message.mutable_checkpoint();
  fact->set_generation(state.generation.number);
  fact->set_rank(rank);
  fact->set_step(step);
  fact->set_what(what);
  fact->set_reason("no space");
  if (what == v1::CheckpointFact::WRITTEN) fact->add_files()->set_name(std::to_string(rank));
  Say(NodeOf(rank), message);
}

void CoreHarness::StopNode(const std::string& node) {
  v1::AgentMessage message;
  message.mutable_generation_stopped()->set_generation(state.generation.number);
  message.mutable_generation_stopped()->set_reason("all its workers ended");
  Say(node, message);
}

void CoreHarness::StopAll() {
  const uint64_t number = state.generation.number;
  for (const Placement& placement : std::vector<Placement>(state.generation.placements)) {
    if (state.generation.number == number && state.nodes.contains(placement.node)) {
      StopNode(placement.node);
    }
  }
}

void CoreHarness::FailGeneration(uint32_t rank) {
  Exit(rank, 0, 9);
  for (uint32_t other = 0; other < state.generation.workers.size(); ++other) {
    if (other != rank) Exit(other, 1, 0, /*by_order=*/true);
  }
  StopAll();
}

nlohmann::ordered_json CoreHarness::Event(const std::string& name) const {
  for (size_t i = events.size(); i > 0; --i) {
    if (events[i - 1]["event"] == name) return events[i - 1];
  }
  return nullptr;
}

int CoreHarness::Count(const std::string& name) const {
  return static_cast<int>(std::count_if(events.begin(), events.end(),
                                        [&](const auto& event) { return event["event"] == name; }));
}

int CoreHarness::CountSent(const std::string& node,
                           v1::CoordinatorMessage::MessageCase kind) const {
  return static_cast<int>(std::count_if(sent.begin(), sent.end(), [&](const auto& entry) {
    return entry.first == node && entry.second.message_case() == kind;
  }));
}

const v1::CoordinatorMessage* CoreHarness::LastSent(
    const std::string& node, v1::CoordinatorMessage::MessageCase kind) const {
  for (size_t i = sent.size(); i > 0; --i) {
    const auto& [to, message] = sent[i - 1];
    if (to == node && message.message_case() == kind) return &message;
  }
  return nullptr;
}

}  // namespace ddprun::coordinator
