// One attached agent: gRPC's thread reads, a thread of the stream's own writes.
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/mailbox.h"
#include "launcher/coordinator/message_bounds.h"
#include "launcher/coordinator/services.h"
#include "launcher/net/batch.h"
#include "launcher/net/peer.h"

namespace ddprun::coordinator {
namespace {

using Stream = grpc::ServerReaderWriter<v1::CoordinatorBatch, v1::AgentBatch>;
using Clock = std::chrono::steady_clock;

// A coordinator that has no job yet has one within moments, or never.
constexpr std::chrono::seconds kJobPatience{10};
// Agents that are known as such; when there are more, their clocks are looked at again.
constexpr size_t kKnownMax = 65536;

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

bool WriteOne(Stream* stream, v1::CoordinatorMessage message) {
  v1::CoordinatorBatch batch;
  *batch.add_messages() = std::move(message);
  return stream->Write(batch);
}

}  // namespace

class AgentStream {
 public:
  // `proof`: of the coordinator, for the Welcome. The core's answer is due by `deadline`.
  AgentStream(grpc::ServerContext* context, Stream* stream, std::string proof,
              Clock::time_point deadline)
      : context_(context), proof_(std::move(proof)) {
    writer_ = std::thread([this, stream, deadline] { Write(stream, deadline); });
  }

  void Send(std::vector<v1::CoordinatorMessage> messages) {
    for (v1::CoordinatorMessage& message : messages) {
      if (message.has_welcome()) message.mutable_welcome()->set_proof(proof_);
      answered_ = answered_ || message.has_welcome() || message.has_refusal();
      waiting_bytes_ += message.ByteSizeLong();
    }
    // An agent that does not read gets all of it again on its next stream.
    if (waiting_bytes_ > net::kOutgoingBytesMax) return Close(true);
    outgoing_.PostAll(std::move(messages));
  }
  void Close(bool cut) {
    cut_ = cut_ || cut;
    outgoing_.Close();
    // A writer that is stuck in gRPC would not come to it.
    if (cut && waiting_bytes_ > net::kOutgoingBytesMax) context_->TryCancel();
  }
  // Before gRPC takes context and stream away.
  void Join() {
    outgoing_.Close();
    writer_.join();
  }

 private:
  void Write(Stream* stream, Clock::time_point deadline) {
    while (true) {
      auto batch = net::TakeBatch<v1::CoordinatorBatch>(
          outgoing_, answered_ ? std::nullopt : std::optional(deadline));
      if (!batch) {
        if (outgoing_.closed()) break;
        if (answered_) continue;
        cut_ = true;  // the core has not answered
        break;
      }
      waiting_bytes_ -= std::min<size_t>(waiting_bytes_, batch->ByteSizeLong());
      if (!stream->Write(*batch)) return;
    }
    if (cut_) context_->TryCancel();
  }

  grpc::ServerContext* context_;
  const std::string proof_;
  Mailbox<v1::CoordinatorMessage> outgoing_;
  std::atomic<size_t> waiting_bytes_{0};
  std::atomic<bool> cut_{false};
  std::atomic<bool> answered_{false};
  std::thread writer_;
};

void AgentStreams::Add(const std::string& node, const std::string& incarnation,
                       std::shared_ptr<AgentStream> stream) {
  std::lock_guard lock(mutex_);
  streams_[{node, incarnation}] = std::move(stream);
}

bool AgentStreams::Remove(const std::string& node, const std::string& incarnation,
                          const AgentStream* stream) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find({node, incarnation});
  if (found == streams_.end() || found->second.get() != stream) return false;
  streams_.erase(found);
  return true;
}

void AgentStreams::Send(const std::string& node, const std::string& incarnation,
                        std::vector<v1::CoordinatorMessage> messages) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find({node, incarnation});
  if (found != streams_.end()) found->second->Send(std::move(messages));
}

void AgentStreams::Close(const std::string& node, const std::string& incarnation, bool cut) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find({node, incarnation});
  if (found != streams_.end()) found->second->Close(cut);
}

int64_t AgentStreams::count() {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(streams_.size());
}

void AgentStreams::CloseAll() {
  std::lock_guard lock(mutex_);
  for (auto& [key, stream] : streams_) stream->Close(false);
}

// The first messages of one stream, on gRPC's thread.
class AgentServiceImpl::Handshake {
 public:
  Handshake(AgentServiceImpl& service, std::string peer, Stream* stream)
      : service_(service), peer_(std::move(peer)), stream_(stream) {}

  // False: the stream is over; `status` is what gRPC says.
  bool Do(grpc::Status* status) {
    const std::shared_ptr<const Admission> admission = service_.WaitForJob();
    if (admission == nullptr) {
      *status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "this coordinator has no job yet");
      return false;
    }
    if (!stream_->Read(&batch_)) return false;
    if (batch_.messages_size() != 1 || !batch_.messages(0).has_hello()) {
      return Refuse(Malformed("the first message is no Hello: ddprun of another version?"));
    }
    const bool known = service_.IsKnown(hello());
    if (auto refusal = CheckHello(*admission, hello(), known, RealNs())) return Refuse(*refusal);
    node_ = hello().node();
    v1::CoordinatorMessage message;
    v1::Challenge* challenge = message.mutable_challenge();
    challenge->set_nonce(net::MakeNonce());
    challenge->set_job_id(admission->job_id);
    challenge->set_time_ns(RealNs());
    challenge->set_shared_file(admission->shared_file.path);
    const net::ProofSubject subject = SubjectOf(*admission, hello(), challenge->nonce());
    if (!WriteOne(stream_, message)) return false;
    v1::AgentBatch answer;
    if (!stream_->Read(&answer)) return false;
    if (answer.messages_size() != 1 || !answer.messages(0).has_answer()) {
      return Refuse(Malformed("the second message is no Answer"));
    }
    if (auto refusal = CheckAnswer(*admission, answer.messages(0).answer(), subject)) {
      return Refuse(*refusal);
    }
    proof_ = net::CoordinatorProof(admission->secret, subject);
    service_.Know(hello());
    return true;
  }
  v1::AgentMessage TakeHello() { return std::move(*batch_.mutable_messages(0)); }
  const v1::Hello& hello() const { return batch_.messages(0).hello(); }
  const std::string& proof() const { return proof_; }

 private:
  bool Refuse(const v1::Refusal& refusal) {
    service_.handlers_.refused({node_, peer_, refusal});
    v1::CoordinatorMessage message;
    *message.mutable_refusal() = refusal;
    WriteOne(stream_, std::move(message));
    return false;
  }

  AgentServiceImpl& service_;
  std::string peer_;
  Stream* stream_;
  std::string node_;  // once it is known to be a name
  v1::AgentBatch batch_;
  std::string proof_;
};

void AgentServiceImpl::Open(Admission admission) {
  {
    std::lock_guard lock(mutex_);
    admission_ = std::make_shared<const Admission>(std::move(admission));
  }
  opened_.notify_all();
}

void AgentServiceImpl::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  opened_.notify_all();
}

std::shared_ptr<const Admission> AgentServiceImpl::WaitForJob() {
  std::unique_lock lock(mutex_);
  opened_.wait_for(lock, kJobPatience, [this] { return closed_ || admission_ != nullptr; });
  return admission_;
}

bool AgentServiceImpl::IsKnown(const v1::Hello& hello) {
  std::lock_guard lock(mutex_);
  return known_.contains({hello.node(), hello.incarnation()});
}

void AgentServiceImpl::Know(const v1::Hello& hello) {
  std::lock_guard lock(mutex_);
  if (known_.size() >= kKnownMax) known_.clear();
  known_.emplace(hello.node(), hello.incarnation());
}

grpc::Status AgentServiceImpl::Attach(grpc::ServerContext* context, Stream* stream) {
  const std::string peer = net::PeerText(context->peer());
  const Clock::time_point deadline = Clock::now() + net::kAdmissionSeconds;
  Handshake handshake(*this, peer, stream);
  {
    absl::Cleanup leave = [this] { --handshakes_; };
    if (++handshakes_ > net::kHandshakesMax) {
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many agents come at once");
    }
    grpc::Status status = grpc::Status::OK;
    if (!handshake.Do(&status)) return status;
  }
  handlers_.admitted(context->peer());
  const std::string node = handshake.hello().node();
  const std::string incarnation = handshake.hello().incarnation();
  const uint64_t number = ++streams_made_;
  auto budget = std::make_shared<net::Budget>(net::kIncomingBytesMax);
  auto self = std::make_shared<AgentStream>(context, stream, handshake.proof(), deadline);
  streams_.Add(node, incarnation, self);
  handlers_.post(NodeMessage{node, incarnation, handshake.TakeHello(), number, peer}, nullptr);
  v1::AgentBatch batch;
  grpc::Status status = grpc::Status::OK;
  while (stream->Read(&batch)) {
    if (batch.ByteSizeLong() > static_cast<size_t>(net::kMessageBytesMax)) {
      handlers_.refused({node, peer, TooLarge(batch.ByteSizeLong())});
      status = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the message is too large");
      break;
    }
    // All of a batch share a ticket: the budget has room again when the last one is handled.
    const net::Budget::Ticket ticket = budget->Take(batch.ByteSizeLong());
    for (auto& message : *batch.mutable_messages()) {
      if (message.has_hello() || message.has_answer()) continue;  // of the handshake alone
      CutToBounds(&message);
      handlers_.post(NodeMessage{node, incarnation, std::move(message), number, peer}, ticket);
    }
    batch.Clear();
  }
  if (streams_.Remove(node, incarnation, self.get())) {
    handlers_.post(NodeDetached{node, incarnation, "its connection broke", number}, nullptr);
  }
  self->Join();
  return status;
}

}  // namespace ddprun::coordinator
