// What workers say while they run: started, ready, progress, failure reports, the exchange.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/accounting.h"
#include "launcher/coordinator/turn.h"

namespace ddprun::coordinator {
namespace {

constexpr size_t kExchangeKeysMax = 1'000'000;  // 1,000 ranks with a key for each peer
constexpr size_t kExchangeValueBytesMax = 32768;

Worker* FindWorker(Turn& turn, uint32_t rank) {
  auto& workers = turn.state.generation.workers;
  return rank < workers.size() ? &workers[rank] : nullptr;
}

v1::CoordinatorMessage ValueMessage(uint64_t generation, uint32_t rank, const std::string& group,
                                    const std::string& name, const std::string& value) {
  v1::CoordinatorMessage message;
  auto* out = message.mutable_value();
  out->set_generation(generation);
  out->set_rank(rank);
  out->set_group(group);
  out->set_name(name);
  out->set_value(value);
  return message;
}

template <typename Request>
void Refuse(Turn& turn, Node& node, const Request& request, const std::string& reason) {
  v1::CoordinatorMessage message;
  auto* out = message.mutable_exchange_refused();
  out->set_generation(request.generation());
  out->set_rank(request.rank());
  out->set_group(request.group());
  out->set_name(request.name());
  out->set_reason(reason);
  turn.Send(node, std::move(message));
}

}  // namespace

void Turn::Record(const char* name, nlohmann::ordered_json fields) {
  using Json = nlohmann::ordered_json;
  Json event = Json::object();
  auto& items = event.get_ref<Json::object_t&>();
  items.reserve(fields.size() + 2);
  items.emplace("event", Json(name));
  items.emplace("generation", Json(state.generation.number));
  for (auto& [key, value] : fields.get_ref<Json::object_t&>()) items.emplace(key, std::move(value));
  out.push_back(RecordEvent{std::move(event)});
}

void Turn::Send(Node& node, v1::CoordinatorMessage message) {
  out.push_back(SendToNode{node.name, node.incarnation, node.link.Send(std::move(message))});
  if (node.link.overflowed()) overflown.push_back(node.name);
}

Node* Turn::MemberOf(const Placement& placement) {
  auto found = state.nodes.find(placement.node);
  return found == state.nodes.end() ? nullptr : &found->second;
}

void Turn::SendToMembers(const v1::CoordinatorMessage& message) {
  for (const Placement& placement : state.generation.placements) {
    if (Node* node = MemberOf(placement)) Send(*node, message);
  }
}

bool Turn::IsMember(const std::string& node) const {
  const auto& placements = state.generation.placements;
  return std::any_of(placements.begin(), placements.end(),
                     [&](const Placement& placement) { return placement.node == node; });
}

v1::CoordinatorMessage StopMessage(const v1::StopWorkers& order) {
  v1::CoordinatorMessage message;
  *message.mutable_stop_workers() = order;
  return message;
}

int64_t GraceNs(const State& state) {
  return static_cast<int64_t>(state.spec.grace_seconds() * kSecondNs);
}

void HandleWorkerStarted(Turn& turn, const v1::WorkerStarted& started) {
  Worker* worker = FindWorker(turn, started.rank());
  if (worker == nullptr || worker->started) return;
  worker->started = true;
  nlohmann::ordered_json fields = {{"rank", started.rank()},
                                   {"local_rank", started.local_rank()},
                                   {"node", worker->node},
                                   {"pid", started.pid()}};
  Generation& g = turn.state.generation;
  if (++g.started == g.workers.size() && turn.state.phase == Phase::kRunning) {
    g.all_started_ns = turn.now_ns;
    fields.update(AccountAllStarted(turn.state));
  }
  turn.Record("worker_started", std::move(fields));
}

void HandleWorkerReady(Turn& turn, const v1::WorkerReady& ready) {
  Worker* worker = FindWorker(turn, ready.rank());
  if (worker == nullptr || worker->ready) return;
  worker->ready = true;
  Generation& g = turn.state.generation;
  ++g.ready;
  if (!worker->exited) ++g.ready_or_exited;
  if (g.first_ready_ns == 0) g.first_ready_ns = turn.now_ns;
  turn.Record("worker_ready", {{"rank", ready.rank()}});
  MaybeRequestEdge(turn);
  if (g.ready == g.workers.size()) ConsiderGrowth(turn);
}

void HandleWorkerFailed(Turn& turn, const v1::WorkerFailed& failed) {
  Worker* worker = FindWorker(turn, failed.rank());
  if (worker == nullptr || worker->failed) return;
  worker->failed = failed;
  if (turn.state.phase != Phase::kRunning) return;
  // A report of its own error ends the generation at once; a lost peer shows itself by its end,
  // which is on its way.
  if (failed.kind() == v1::WorkerFailed::COMMUNICATION) return;
  EndGeneration(turn, true, absl::StrCat("rank ", failed.rank(), ": ", failed.message()),
                v1::StopWorkers::ABORT);
}

void HandleProgress(Turn& turn, const v1::WorkerProgressed& progressed) {
  State& s = turn.state;
  Generation& g = s.generation;
  // One rank speaks for all: they train in lock-step.
  if (progressed.rank() != 0 || s.phase != Phase::kRunning || progressed.step() <= g.step) return;
  nlohmann::ordered_json fields = {{"step", progressed.step()}};
  if (g.first_step == 0) {
    g.first_step = progressed.step();
    g.first_step_ns = turn.now_ns;
    s.accounts.steps_reported = true;
    fields.update(AccountWorkBegins(s));
  }
  g.step = progressed.step();
  g.last_step_ns = turn.now_ns;
  if (progressed.epoch() > 0) fields["epoch"] = progressed.epoch();
  if (progressed.epochs() > 0) fields["epochs"] = progressed.epochs();
  if (progressed.total_steps() > 0) fields["total_steps"] = progressed.total_steps();
  fields["loss"] = progressed.loss();
  if (progressed.samples_per_second() > 0)
    fields["samples_per_s"] = progressed.samples_per_second();
  turn.Record("training_progressed", std::move(fields));
}

void RefuseStale(Turn& turn, Node& node, const v1::AgentMessage& message) {
  const std::string reason = "this generation is over";
  if (message.has_publish()) Refuse(turn, node, message.publish(), reason);
  if (message.has_await()) Refuse(turn, node, message.await(), reason);
}

void HandlePublish(Turn& turn, Node& node, const v1::Publish& publish) {
  Generation& g = turn.state.generation;
  if (turn.state.phase != Phase::kRunning) {
    return Refuse(turn, node, publish, "this generation is over");
  }
  const std::pair<std::string, std::string> key{publish.group(), publish.name()};
  if (publish.value().size() > kExchangeValueBytesMax) {
    return Refuse(turn, node, publish,
                  absl::StrCat("a value holds at most ", kExchangeValueBytesMax, " bytes"));
  }
  if (g.values.size() >= kExchangeKeysMax) {
    return Refuse(turn, node, publish, absl::StrCat("more than ", kExchangeKeysMax, " keys"));
  }
  auto [value, fresh] = g.values.emplace(key, publish.value());
  if (!fresh) {
    if (value->second == publish.value()) return;
    return Refuse(turn, node, publish, "it was published before with other bytes");
  }
  auto waiting = g.awaits.find(key);
  if (waiting == g.awaits.end()) return;
  for (uint32_t rank : waiting->second) {
    auto peer = turn.state.nodes.find(g.workers[rank].node);
    if (peer == turn.state.nodes.end()) continue;
    turn.Send(peer->second,
              ValueMessage(g.number, rank, publish.group(), publish.name(), publish.value()));
  }
  g.awaits.erase(waiting);
}

void HandleAwait(Turn& turn, Node& node, const v1::Await& await) {
  Generation& g = turn.state.generation;
  if (turn.state.phase != Phase::kRunning || await.rank() >= g.workers.size()) return;
  const std::pair<std::string, std::string> key{await.group(), await.name()};
  auto value = g.values.find(key);
  if (value != g.values.end()) {
    turn.Send(node,
              ValueMessage(g.number, await.rank(), await.group(), await.name(), value->second));
  } else if (g.awaits.size() < kExchangeKeysMax) {
    g.awaits[key].insert(await.rank());
  }
}

}  // namespace ddprun::coordinator
