#include "tests/scale/swarm.h"

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/net/credentials.h"

namespace ddprun::scale {
namespace {

constexpr char kGroup[] = "world";
constexpr char kName[] = "unique_id";
constexpr size_t kUniqueIdBytes = 128;  // NCCL's

}  // namespace

int64_t NowNs(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

SwarmAgent::SwarmAgent(const std::string& coordinator, const net::Security& security,
                       uint32_t number, uint32_t slots, Totals* totals)
    : security_(security), number_(number), totals_(*totals) {
  stub_ = v1::AgentService::NewStub(net::MakeChannel(coordinator, security_));
  hello_.set_protocol_version(1);
  hello_.set_node(absl::StrCat("swarm", number));
  hello_.set_incarnation(absl::StrCat("incarnation", number));
  hello_.set_slots(slots);
  hello_.set_node_rank_wanted(-1);
  hello_.set_version(DDPRUN_VERSION);
  hello_.set_address("127.0.0.1");
  hello_.set_interface("lo");
  hello_.set_master_port(20000 + number);
}

void SwarmAgent::Attach() {
  std::lock_guard lock(mutex_);
  stub_->async()->Attach(&context_, this);
  context_.set_wait_for_ready(true);  // as agents do, which try again
  AddHold();                          // heartbeats are written from outside of the callbacks
  hello_.set_nonce(net::MakeNonce());
  hello_.set_time_ns(NowNs(CLOCK_REALTIME));
  v1::AgentMessage message;
  *message.mutable_hello() = hello_;
  Queue(std::move(message));
  StartRead(&incoming_);
  StartCall();
}

void SwarmAgent::Heartbeat(int64_t now_ns) {
  std::lock_guard lock(mutex_);
  if (!welcomed_ || over_ || last_ || heartbeat_seconds_ <= 0 || now_ns < next_heartbeat_ns_)
    return;
  next_heartbeat_ns_ = now_ns + static_cast<int64_t>(heartbeat_seconds_ * 1e9);
  v1::AgentMessage message;
  auto* heartbeat = message.mutable_heartbeat();
  heartbeat->set_sequence(++heartbeats_);
  heartbeat->set_sent_ns(NowNs(CLOCK_REALTIME));
  heartbeat->set_generation(start_.generation());
  heartbeat->set_state(start_.generation() == 0 ? v1::NODE_IDLE : v1::NODE_RUNNING);
  message.set_ack(link_.last_received());
  Queue(std::move(message));
}

void SwarmAgent::GetReady() {
  std::lock_guard lock(mutex_);
  gathering_ = true;
  for (uint32_t i = 0; i < start_.local_world_size(); ++i) {
    v1::AgentMessage message;
    message.mutable_worker_ready()->set_generation(start_.generation());
    message.mutable_worker_ready()->set_rank(start_.first_rank() + i);
    Fact(std::move(message));
  }
  gathering_ = false;
  WriteQueued();
}

void SwarmAgent::Finish() {
  std::lock_guard lock(mutex_);
  gathering_ = true;
  for (uint32_t i = 0; i < start_.local_world_size(); ++i) {
    v1::AgentMessage message;
    auto* exited = message.mutable_worker_exited();
    exited->set_generation(start_.generation());
    exited->set_rank(start_.first_rank() + i);
    exited->set_pid(static_cast<int32_t>(start_.first_rank() + i + 1));
    exited->set_time_ns(NowNs(CLOCK_REALTIME));
    exited->set_finished(true);
    Fact(std::move(message));
  }
  v1::AgentMessage message;
  message.mutable_generation_stopped()->set_generation(start_.generation());
  message.mutable_generation_stopped()->set_reason("all its workers ended");
  Fact(std::move(message));
  gathering_ = false;
  WriteQueued();
}

void SwarmAgent::Challenged(const v1::Challenge& challenge) {
  subject_ = {challenge.job_id(), hello_.node(),     hello_.incarnation(),
              hello_.nonce(),     challenge.nonce(), hello_.time_ns()};
  v1::AgentMessage message;
  message.mutable_answer()->set_proof(net::AgentProof(security_.secret, subject_));
  Queue(std::move(message));
}

void SwarmAgent::Started(const v1::StartWorkers& start) {
  start_ = start;
  start_.clear_spec();
  for (uint32_t i = 0; i < start.local_world_size(); ++i) {
    v1::AgentMessage message;
    auto* started = message.mutable_worker_started();
    started->set_generation(start.generation());
    started->set_rank(start.first_rank() + i);
    started->set_local_rank(i);
    started->set_pid(static_cast<int32_t>(start.first_rank() + i + 1));
    started->set_time_ns(NowNs(CLOCK_REALTIME));
    Fact(std::move(message));
  }
  if (start.first_rank() == 0) {
    v1::AgentMessage message;
    auto* publish = message.mutable_publish();
    publish->set_generation(start.generation());
    publish->set_group(kGroup);
    publish->set_name(kName);
    publish->set_value(std::string(kUniqueIdBytes, 'x'));
    Fact(std::move(message));
  }
  // Once for the node, as agents do (launcher/agent/exchange_fanout.h).
  v1::AgentMessage message;
  auto* await = message.mutable_await();
  await->set_generation(start.generation());
  await->set_rank(start.first_rank());
  await->set_group(kGroup);
  await->set_name(kName);
  Fact(std::move(message));
}

void SwarmAgent::Handle(const v1::CoordinatorMessage& message) {
  using M = v1::CoordinatorMessage;
  if (message.has_challenge()) return Challenged(message.challenge());
  if (message.has_welcome()) {
    welcomed_ = true;
    heartbeat_seconds_ = message.welcome().heartbeat_seconds();
    // Spread over the interval, as those of nodes that came by and by are.
    next_heartbeat_ns_ = NowNs(CLOCK_MONOTONIC) +
                         static_cast<int64_t>(heartbeat_seconds_ * 1e9 * (number_ % 64) / 64);
    std::lock_guard lock(totals_.mutex);
    ++totals_.welcomed;
    totals_.changed.notify_all();
    return;
  }
  if (!link_.Receive(message.sequence(), message.ack())) return;
  switch (message.message_case()) {
    case M::kStartWorkers:
      return Started(message.start_workers());
    case M::kValue: {
      if (std::exchange(told_, true)) return;
      std::lock_guard lock(totals_.mutex);
      totals_.ranks_told += start_.local_world_size();
      totals_.changed.notify_all();
      return;
    }
    case M::kJobEnded:
      last_ = true;
      return;
    case M::kRefusal: {
      last_ = true;
      std::lock_guard lock(totals_.mutex);
      if (totals_.problem.empty()) totals_.problem = message.refusal().reason();
      ++totals_.failed;
      return;
    }
    default:
      return;
  }
}

void SwarmAgent::Fact(v1::AgentMessage message) {
  Queue(link_.Send(std::move(message)));
}

void SwarmAgent::Queue(v1::AgentMessage message) {
  *queued_.add_messages() = std::move(message);
  WriteQueued();
}

void SwarmAgent::WriteQueued() {
  if (writing_ || gathering_ || over_) return;
  if (queued_.messages().empty()) {
    if (last_ && !std::exchange(done_saying_, true)) StartWritesDone();
    return;
  }
  outgoing_.Clear();
  outgoing_.Swap(&queued_);
  writing_ = true;
  {
    std::lock_guard lock(totals_.mutex);
    ++totals_.batches_up;
    totals_.messages_up += static_cast<uint64_t>(outgoing_.messages_size());
    totals_.bytes_up += outgoing_.ByteSizeLong();
  }
  StartWrite(&outgoing_);
}

void SwarmAgent::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  if (ok) WriteQueued();
}

void SwarmAgent::OnReadDone(bool ok) {
  std::lock_guard lock(mutex_);
  if (!ok) {
    over_ = true;
    RemoveHold();
    return;
  }
  {
    std::lock_guard totals_lock(totals_.mutex);
    ++totals_.batches_down;
    totals_.messages_down += static_cast<uint64_t>(incoming_.messages_size());
    totals_.bytes_down += incoming_.ByteSizeLong();
  }
  gathering_ = true;
  for (const v1::CoordinatorMessage& message : incoming_.messages()) Handle(message);
  gathering_ = false;
  WriteQueued();
  incoming_.Clear();
  StartRead(&incoming_);
}

void SwarmAgent::OnDone(const grpc::Status& status) {
  std::lock_guard lock(totals_.mutex);
  ++totals_.ended;
  if (!status.ok()) {
    ++totals_.failed;
    if (totals_.problem.empty()) totals_.problem = status.error_message();
  }
  totals_.changed.notify_all();
}

}  // namespace ddprun::scale
