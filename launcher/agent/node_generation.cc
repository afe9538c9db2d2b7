#include "launcher/agent/node_generation.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/agent/health_check.h"
#include "launcher/agent/orphans.h"
#include "launcher/agent/reachability.h"
#include "launcher/agent/worker_spec.h"

namespace ddprun::agent {
namespace {

constexpr int kPacketsPerTurn = 256;  // of one keeper, so that orders are never starved by output

}  // namespace

void NodeGeneration::Begin(const SpawnKeeper& order) {
  order_ = order.order;
  UseOwn(options_.own, &order_);
  lease_until_ns_ = order.lease_until_ns;
  notes_ = WorkerNotes{};
  notes_.generation = order_.generation();
  notes_.first_rank = order_.first_rank();
  fanout_ = ExchangeFanout{};
  unkillable_.clear();
  pause_when_started_ = false;
  absl::Status status = MakeFolders();
  if (status.ok()) status = PlaceWorkers();
  if (!status.ok()) return TellStartFailure(status);
  Prepare(options_.clock->NowNs());
}

absl::Status NodeGeneration::MakeFolders() {
  absl::Status made = PosixFileSystem().MakeDirectories(ParentPath(LogPath(order_, 0)));
  if (!made.ok()) return made;
  return PosixFileSystem().MakeDirectories(order_.spec().run_dir() + "/state");
}

// GPUs, CPUs and threads of the workers; what a person should know of it is said once.
absl::Status NodeGeneration::PlaceWorkers() {
  auto places = placement::PlanNode(options_.machine, order_.spec(), order_.local_world_size());
  if (!places.ok()) return places.status();
  places_ = *std::move(places);
  if (std::exchange(placement_said_, true)) return absl::OkStatus();
  for (const std::string& note : places_.notes) options_.console->Say("ddprun: " + note);
  if (!places_.threads.empty()) options_.console->Say("ddprun: " + places_.threads);
  return absl::OkStatus();
}

void NodeGeneration::Prepare(int64_t now_ns) {
  preparation_ = std::make_unique<Preparation>();
  auto memory = gpu_memory_.StepBefore(order_.generation(), order_.spec(), places_);
  if (memory != nullptr) preparation_->Add(std::move(memory));
  auto reachability =
      ReachabilityStep(order_, {options_.node, options_.own.address, options_.own.interface});
  if (reachability != nullptr) preparation_->Add(std::move(reachability));
  if (!order_.spec().supervision().health_check().empty()) {
    preparation_->Add(std::make_unique<HealthCheck>(order_, options_.node, options_.keeper_path));
  }
  // At first two at the same time: the second one is for the next generation. A single worker loads
  // as fast by itself, and only its restart gains.
  const bool first = reserve_.empty();
  if (!first || order_.local_world_size() > 1) {
    const bool two = first && order_.spec().restart().max_restarts() > 0;
    reserve_.Provide(two ? 2 : 1, order_, Facts());
    preparation_->Add(reserve_.Step());
  }
  ContinuePreparation(now_ns);
}

void NodeGeneration::ContinuePreparation(int64_t now_ns) {
  PreparationResult result = preparation_->Advance(now_ns);
  for (const std::string& line : preparation_->TakeLines()) options_.console->Say(line);
  if (result.state == PreparationResult::State::kWorking) return;
  const std::vector<int32_t> unkillable = preparation_->unkillable_pids();
  preparation_.reset();
  if (result.state == PreparationResult::State::kReady) {
    const absl::Status started = StartKeeper();
    if (!started.ok()) TellStartFailure(started);
    return;
  }
  if (notes_.stop_ordered_ns == 0) {
    v1::AgentMessage fact;
    fact.mutable_node_unhealthy()->set_generation(notes_.generation);
    fact.mutable_node_unhealthy()->set_reason(result.text);
    fact.mutable_node_unhealthy()->set_unreachable_address(result.unreachable_address);
    events_.push_back(KeeperSaid{notes_.generation, std::move(fact)});
  }
  TellOver({notes_.generation, false, std::move(result.text), unkillable});
}

NodeFacts NodeGeneration::Facts() const {
  return {options_.node,   options_.worker_path, 0, options_.clock->monotonic(),
          places_.workers, options_.own.address};
}

absl::Status NodeGeneration::HoldPort() {
  return master_port_.Reserve(options_.own.address);
}

// On the node of rank 0: the port that it holds already, the wished one, or a fresh one.
absl::Status NodeGeneration::TakeMasterPort(NodeFacts* facts) {
  if (order_.group_rank() != 0) return absl::OkStatus();
  const uint32_t wished =
      order_.master_port() != 0 ? order_.master_port() : order_.spec().launching().master_port();
  const bool held = master_port_.port() != 0 && (wished == 0 || wished == master_port_.port());
  if (!held) {
    absl::Status reserved = master_port_.Reserve(order_.master_address(), wished);
    if (!reserved.ok()) return reserved;
  }
  facts->master_port = master_port_.port();
  return absl::OkStatus();
}

// Over several nodes a fresh one is held at once, since somebody may listen on the old one for a
// while.
void NodeGeneration::ReleaseMasterPort() {
  const bool used = order_.group_rank() == 0 || master_port_.port() == 0;
  if (!options_.own.several_nodes || (used && !HoldPort().ok())) master_port_.Release();
}

void NodeGeneration::TellOver(KeeperGone gone) {
  ReleaseMasterPort();
  gone.master_port = held_port();
  events_.push_back(std::move(gone));
}

// The one in reserve where it fits, else a new one.
absl::StatusOr<std::unique_ptr<KeeperProcess>> NodeGeneration::MakeKeeper(const std::string& spec) {
  std::unique_ptr<KeeperProcess> reserved = reserve_.Take(order_, Facts());
  if (reserved != nullptr && reserved->SendWithFile(PacketWriter("Begin").Finish(), spec).ok()) {
    return reserved;
  }
  return KeeperProcess::Spawn(options_.keeper_path, spec);
}

absl::Status NodeGeneration::StartKeeper() {
  NodeFacts facts = Facts();
  absl::Status port = TakeMasterPort(&facts);
  if (!port.ok()) return port;
  for (uint32_t i = 0; i < order_.local_world_size(); ++i) {
    const uint32_t rank = order_.first_rank() + i;
    notes_.log_paths[rank] = LogPath(order_, rank);
  }
  evidence_.Begin(order_, order_.master_port() != 0 ? order_.master_port() : facts.master_port);
  absl::StatusOr<std::unique_ptr<KeeperProcess>> keeper =
      MakeKeeper(MakeKeeperSpec(order_, facts, lease_until_ns_));
  if (!keeper.ok()) return keeper.status();
  keeper_ = std::move(*keeper);
  keeper_gone_.reset();
  stop_bound_ = StopBound{};
  keeper_closed_ = false;
  keeper_clock_ = options_.clock->id();
  if (order_.spec().restart().max_restarts() > 0) reserve_.Provide(1, order_, Facts());
  if (std::exchange(pause_when_started_, false)) Signal({notes_.generation, SIGSTOP});
  return absl::OkStatus();
}

// Told as a failure of the node's first rank, so that it stands in the report.
void NodeGeneration::TellStartFailure(const absl::Status& status) {
  v1::AgentMessage fact;
  auto* failed = fact.mutable_worker_failed();
  failed->set_generation(order_.generation());
  failed->set_rank(order_.first_rank());
  failed->set_kind(v1::WorkerFailed::START);
  failed->set_message(std::string(status.message()));
  failed->set_time_ns(1);
  events_.push_back(KeeperSaid{order_.generation(), std::move(fact)});
  TellOver({order_.generation(), false, std::string(status.message()), {}});
}

void NodeGeneration::Stop(const v1::StopWorkers& order) {
  if (notes_.generation != order.generation() || (!keeper_ && !preparation_)) return;
  if (notes_.stop_ordered_ns == 0) notes_.stop_ordered_ns = LeaseClock::NowNs(CLOCK_REALTIME);
  if (preparation_) {
    preparation_->Cancel();
    return ContinuePreparation(options_.clock->NowNs());
  }
  keeper_->Send(StopPacketOf(order));
  keeper_->Wake();  // one that was stopped could not take it
  const double grace =
      order.grace_seconds() > 0 ? order.grace_seconds() : order_.spec().grace_seconds();
  stop_bound_.Ordered(order.mode(), grace, options_.clock->NowNs());
}

void NodeGeneration::Tell(const v1::CoordinatorMessage& message) {
  for (const v1::CoordinatorMessage& one : fanout_.Spread(message)) TellWorkers(one);
}

void NodeGeneration::TellWorkers(const v1::CoordinatorMessage& message) {
  int64_t rank = -1;
  std::optional<std::string> packet = WorkerPacketOf(message, &rank);
  if (!packet || !keeper_) return;
  for (const auto& [own_rank, path] : notes_.log_paths) {
    if (rank >= 0 && own_rank != static_cast<uint32_t>(rank)) continue;
    keeper_->Send(PacketWriter("Packet").Unsigned("RANK", own_rank).FinishWithBody(*packet));
  }
}

void NodeGeneration::Signal(const SignalWorkers& order) {
  if (keeper_) {
    keeper_->Send(PacketWriter("Signal").Integer("NUMBER", order.signal).Finish());
    return;
  }
  // Nobody is there yet; workers that start during a pause are stopped at once.
  if (order.signal == SIGSTOP || order.signal == SIGCONT) {
    pause_when_started_ = order.signal == SIGSTOP;
  }
  v1::AgentMessage fact;
  fact.mutable_workers_signalled()->set_generation(order.generation);
  fact.mutable_workers_signalled()->set_signal(order.signal);
  events_.push_back(KeeperSaid{order.generation, std::move(fact)});
}

void NodeGeneration::Examine(uint64_t generation) {
  if (keeper_) {
    examination_.Begin(generation);
    return PumpExamination();
  }
  v1::AgentMessage fact;
  fact.mutable_workers_examined()->set_generation(generation);
  events_.push_back(KeeperSaid{generation, std::move(fact)});
}

void NodeGeneration::PumpExamination() {
  if (keeper_ && examination_.TakeQuestion()) keeper_->Send(PacketWriter("Examine").Finish());
  if (std::optional<v1::AgentMessage> answer = examination_.TakeAnswer()) {
    events_.push_back(KeeperSaid{notes_.generation, std::move(*answer)});
  }
}

void NodeGeneration::RenewLease(int64_t until_ns) {
  lease_until_ns_ = until_ns;
  if (!keeper_) return;
  // As a moment of the keeper's clock, so that the time for which the packet waits counts too.
  const int64_t until = LeaseClock::NowNs(keeper_clock_) + until_ns - options_.clock->NowNs();
  keeper_->Send(PacketWriter("Lease").Integer("UNTIL_NS", until).Finish());
}

void NodeGeneration::Abandon() {
  preparation_.reset();
  examination_.Cancel();
  keeper_.reset();
  reserve_.Drop();
  EndOrphans();
}

void NodeGeneration::AddPolls(std::vector<pollfd>* polls) const {
  if (preparation_) preparation_->AddPolls(polls);
  if (!keeper_) return;
  reserve_.AddPolls(polls);
  polls->push_back({keeper_->pid_fd(), POLLIN, 0});
  if (keeper_closed_) return;
  const short send = keeper_->WantsToSend() ? POLLOUT : 0;
  polls->push_back({keeper_->control_fd(), static_cast<short>(POLLIN | send), 0});
}

void NodeGeneration::Pump(int64_t now_ns) {
  // Before the preparation, which may wait for it: what is read after that would wake nobody.
  reserve_.Pump();
  if (preparation_) ContinuePreparation(now_ns);
  if (keeper_) PumpKeeper();
  if (keeper_) MindStopBound(now_ns);
  PumpExamination();
}

std::deque<Event> NodeGeneration::TakeEvents() {
  return std::exchange(events_, {});
}

void NodeGeneration::PumpKeeper() {
  keeper_->Flush();
  // Whether it has ended is asked before its last packets are read, so that none is missed.
  const bool dead = keeper_->Reap();
  std::string bytes;
  for (int i = 0; dead || i < kPacketsPerTurn; ++i) {
    bool end = false;
    if (!keeper_->Receive(&bytes, &end)) {
      keeper_closed_ = keeper_closed_ || end;
      break;
    }
    std::optional<Packet> packet = Packet::Parse(bytes, nullptr);
    if (packet) HandlePacket(*packet);
  }
  if (dead) HandleKeeperEnd();
}

// Its death ends the workers; how it goes on then: HandleKeeperEnd.
void NodeGeneration::MindStopBound(int64_t now_ns) {
  switch (stop_bound_.Pass(now_ns)) {
    case StopBound::Due::kNothing:
      return;
    case StopBound::Due::kWake:
      return keeper_->Wake();
    case StopBound::Due::kKill:
      options_.console->Say(
          absl::StrCat("ddprun: ddprun-keeper (process ", keeper_->pid(),
                       ") does not obey an order to stop; it is killed, and the workers with it"));
      return keeper_->Kill();
    case StopBound::Due::kGiveUp:
      unkillable_.push_back(keeper_->pid());
      return HandleKeeperEnd();
  }
}

void NodeGeneration::HandlePacket(const Packet& packet) {
  if (examination_.Take(packet)) return;
  if (packet.type() == "Console") {
    options_.console->WorkerOutput(Prefix(packet), packet.body().value_or(""),
                                   packet.Unsigned("DROPPED").value_or(0));
    return;
  }
  if (packet.type() == "Gone") {
    keeper_gone_ = KeeperGone{notes_.generation,
                              false,
                              notes_.lease_expired ? "its lease ran out" : "all its workers ended",
                              {}};
    return;
  }
  if (packet.type() == "LeaseExpired") {
    NoteLeaseExpired(packet, notes_);
    options_.console->Say(
        "ddprun: the coordinator was not heard for the length of the lease; the workers of this "
        "node are ended");
  }
  if (packet.type() == "Started") {
    gpu_memory_.WorkerStarted(static_cast<uint32_t>(packet.Integer("PID").value_or(0)));
  }
  if (packet.type() == "Exited") options_.console->EndOf(Prefix(packet));
  if (packet.type() == "Unkillable") {
    unkillable_.push_back(static_cast<int32_t>(packet.Integer("PID").value_or(0)));
  }
  std::optional<v1::AgentMessage> fact = FactOf(packet, notes_);
  if (fact && fact->has_worker_exited()) ExplainExit(packet, fact->mutable_worker_exited());
  if (fact) HandleFact(std::move(*fact));
}

void NodeGeneration::HandleFact(v1::AgentMessage fact) {
  if (fact.has_await()) {
    v1::CoordinatorMessage value;
    const ExchangeFanout::Answer answer = fanout_.Await(fact.await(), &value);
    if (answer == ExchangeFanout::Answer::kHere) TellWorkers(value);
    if (answer != ExchangeFanout::Answer::kAsk) return;
  }
  events_.push_back(KeeperSaid{notes_.generation, std::move(fact)});
}

void NodeGeneration::ExplainExit(const Packet& packet, v1::WorkerExited* exited) {
  ExitCircumstances circumstances;
  circumstances.core_flag = packet.Integer("CORE").value_or(0) != 0;
  circumstances.said_failed = notes_.said_failed.contains(exited->rank());
  const auto started = notes_.started_ns.find(exited->rank());
  if (started != notes_.started_ns.end()) circumstances.started_ns = started->second;
  const uint64_t void_packets = packet.Unsigned("VOID_PACKETS").value_or(0);
  if (void_packets > 0) {
    options_.console->Say(absl::StrCat("ddprun: rank ", exited->rank(), ": ", void_packets,
                                       " of its packets were void or too many, and were dropped"));
  }
  for (const std::string& line : evidence_.Explain(circumstances, exited)) {
    options_.console->Say(line);
  }
}

std::string NodeGeneration::Prefix(const Packet& packet) const {
  return absl::StrCat(options_.node, ":", packet.Unsigned("RANK").value_or(0));
}

void NodeGeneration::HandleKeeperEnd() {
  examination_.Cancel();
  keeper_.reset();
  KeeperGone gone{notes_.generation, true, "its keeper died", {}};
  if (keeper_gone_) {
    gone = *keeper_gone_;
  } else {
    // The workers died with it (PR_SET_PDEATHSIG); their children were left to us.
    reserve_.Drop();  // no keeper may live then
    gone.unkillable_pids = EndOrphans();
  }
  gone.unkillable_pids.insert(gone.unkillable_pids.end(), unkillable_.begin(), unkillable_.end());
  unkillable_.clear();
  TellOver(std::move(gone));
}

}  // namespace ddprun::agent
