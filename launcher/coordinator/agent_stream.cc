#include "launcher/coordinator/agent_stream.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/agent_service.h"
#include "launcher/coordinator/message_bounds.h"
#include "launcher/net/limits.h"
#include "launcher/net/peer.h"

namespace ddprun::coordinator {
namespace {

int64_t RealNs() {
  return std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

v1::Refusal Malformed(std::string reason) {
  v1::Refusal refusal;
  refusal.set_kind(v1::Refusal::MALFORMED);
  refusal.set_reason(std::move(reason));
  return refusal;
}

v1::Refusal TooLarge(size_t bytes) {
  v1::Refusal refusal;
  refusal.set_kind(v1::Refusal::LIMIT);
  refusal.set_reason(absl::StrCat("a message of ", bytes, " bytes; at most ", net::kMessageBytesMax,
                                  " are taken"));
  return refusal;
}

}  // namespace

void* AgentStream::Pending(Operation& operation) {
  operation.stream = shared_from_this();
  return &operation;
}

void AgentStream::AwaitArrival(v1::AgentService::AsyncService& grpc,
                               grpc::ServerCompletionQueue* queue) {
  grpc.RequestAttach(&context_, &rpc_, queue, queue, Pending(arrival_));
}

void AgentStream::OnArrived(bool ok) {
  if (!ok) return;  // the server is shut down
  deadline_ = Clock::now() + net::kAdmissionSeconds;
  peer_ = net::PeerText(context_.peer());
  service_.Arrived(shared_from_this());
}

void AgentStream::Begin(std::shared_ptr<const Admission> admission) {
  admission_ = std::move(admission);
  std::lock_guard lock(mutex_);
  ReadOn();
}

void AgentStream::ReadOn() {
  if (ending_) return;
  read_waits_ = unhandled_bytes_ >= net::kIncomingBytesMax;
  if (!read_waits_) rpc_.Read(&incoming_, Pending(read_));
}

void AgentStream::OnRead(bool ok) {
  if (!ok) return OnGone(grpc::Status::OK);
  switch (stage_) {
    case Stage::kHello:
      return OnHello();
    case Stage::kAnswer:
      return OnAnswer();
    case Stage::kAttached:
      return OnFacts();
  }
}

void AgentStream::OnHello() {
  if (incoming_.messages_size() != 1 || !incoming_.messages(0).has_hello()) {
    return Refuse(Malformed("the first message is no Hello: ddprun of another version?"));
  }
  hello_ = std::move(*incoming_.mutable_messages(0));
  const v1::Hello& hello = hello_.hello();
  const bool known = service_.IsKnown(hello);
  if (auto refusal = CheckHello(*admission_, hello, known, RealNs())) return Refuse(*refusal);
  node_ = hello.node();
  incarnation_ = hello.incarnation();
  v1::CoordinatorMessage message;
  v1::Challenge* challenge = message.mutable_challenge();
  challenge->set_nonce(net::MakeNonce());
  challenge->set_job_id(admission_->job_id);
  challenge->set_time_ns(RealNs());
  challenge->set_shared_file(admission_->shared_file.path);
  subject_ = SubjectOf(*admission_, hello, challenge->nonce());
  Say(std::move(message));
  stage_ = Stage::kAnswer;
  std::lock_guard lock(mutex_);
  ReadOn();
}

void AgentStream::OnAnswer() {
  if (incoming_.messages_size() != 1 || !incoming_.messages(0).has_answer()) {
    return Refuse(Malformed("the second message is no Answer"));
  }
  if (auto refusal = CheckAnswer(*admission_, incoming_.messages(0).answer(), subject_)) {
    return Refuse(*refusal);
  }
  {
    std::lock_guard lock(mutex_);
    proof_ = net::CoordinatorProof(admission_->secret, subject_);
  }
  stage_ = Stage::kAttached;
  number_ = service_.Admit(hello_.hello(), context_.peer(), shared_from_this());
  service_.handlers().post({NodeMessage{node_, incarnation_, std::move(hello_), number_, peer_}},
                           nullptr);
  hello_.Clear();
  std::lock_guard lock(mutex_);
  ReadOn();
}

void AgentStream::OnFacts() {
  const size_t bytes = incoming_.ByteSizeLong();
  if (bytes > static_cast<size_t>(net::kMessageBytesMax)) {
    service_.handlers().refused({node_, peer_, TooLarge(bytes)});
    return OnGone(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the message is too large"));
  }
  std::vector<Event> events;
  events.reserve(static_cast<size_t>(incoming_.messages_size()));
  for (v1::AgentMessage& message : *incoming_.mutable_messages()) {
    if (message.has_hello() || message.has_answer()) continue;  // of the handshake alone
    CutToBounds(&message);
    events.emplace_back(NodeMessage{node_, incarnation_, std::move(message), number_, ""});
  }
  incoming_.Clear();
  {
    std::lock_guard lock(mutex_);
    unhandled_bytes_ += bytes;
  }
  Ticket ticket(static_cast<void*>(this),
                [self = shared_from_this(), bytes](void*) { self->Handled(bytes); });
  service_.handlers().post(std::move(events), std::move(ticket));
  std::lock_guard lock(mutex_);
  ReadOn();
}

void AgentStream::Handled(size_t bytes) {
  std::lock_guard lock(mutex_);
  unhandled_bytes_ -= bytes;
  if (read_waits_) ReadOn();
}

void AgentStream::OnGone(grpc::Status status) {
  if (stage_ == Stage::kAttached && service_.Remove(node_, incarnation_, this)) {
    service_.handlers().post({NodeDetached{node_, incarnation_, "its connection broke", number_}},
                             nullptr);
  }
  End(std::move(status));
}

void AgentStream::Refuse(const v1::Refusal& refusal) {
  service_.LeaveHandshake(*this);
  service_.handlers().refused({node_, peer_, refusal});
  v1::CoordinatorMessage message;
  *message.mutable_refusal() = refusal;
  Say(std::move(message));
  End(grpc::Status::OK);
}

void AgentStream::End(grpc::Status status) {
  std::lock_guard lock(mutex_);
  if (ending_) return;
  closed_ = ending_ = true;
  status_ = std::move(status);
  WriteOn();
}

void AgentStream::Say(v1::CoordinatorMessage message) {
  std::vector<v1::CoordinatorMessage> messages;
  messages.push_back(std::move(message));
  Send(std::move(messages));
}

void AgentStream::Send(std::vector<v1::CoordinatorMessage> messages) {
  std::lock_guard lock(mutex_);
  if (closed_ || broken_) return;
  for (v1::CoordinatorMessage& message : messages) {
    if (message.has_welcome()) message.mutable_welcome()->set_proof(proof_);
    if (message.has_welcome() || message.has_refusal()) answered_ = true;
    waiting_bytes_ += message.ByteSizeLong();
    outgoing_.push_back(std::move(message));
  }
  // An agent that does not read gets all of it again on its next stream.
  if (waiting_bytes_ > net::kOutgoingBytesMax) return CloseNow(true);
  WriteOn();
}

void AgentStream::Close(bool cut) {
  std::lock_guard lock(mutex_);
  CloseNow(cut);
}

void AgentStream::CloseNow(bool cut) {
  closed_ = true;
  cut_ = cut_ || cut;
  // A Write that is stuck would not come to it.
  if (cut && waiting_bytes_ > net::kOutgoingBytesMax) context_.TryCancel();
  WriteOn();
}

void AgentStream::WriteOn() {
  if (writing_ || finishing_) return;
  if (!outgoing_.empty()) {
    v1::CoordinatorBatch batch;
    size_t bytes = 0;
    while (!outgoing_.empty() && bytes < net::kBatchBytesMax) {
      bytes += outgoing_.front().ByteSizeLong();
      *batch.add_messages() = std::move(outgoing_.front());
      outgoing_.pop_front();
    }
    waiting_bytes_ -= std::min(waiting_bytes_, bytes);
    writing_ = true;
    rpc_.Write(batch, Pending(write_));
  } else if (ending_) {
    finishing_ = true;
    rpc_.Finish(status_, Pending(finish_));
  } else if (cut_) {
    context_.TryCancel();  // the pending Read ends with it
  }
}

void AgentStream::OnWritten(bool ok) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  if (!ok) {
    broken_ = true;  // so is the Read
    outgoing_.clear();
    waiting_bytes_ = 0;
  }
  WriteOn();
}

void AgentStream::OnFinished(bool /*ok*/) {
  service_.LeaveHandshake(*this);
  service_.Ended();
}

}  // namespace ddprun::coordinator
