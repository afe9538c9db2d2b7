#include "launcher/agent/stream.h"

#include <time.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/net/batch.h"
#include "launcher/net/diagnose.h"
#include "launcher/net/shared_file.h"
#include "launcher/net/text.h"

namespace ddprun::agent {

namespace {

// gRPC works on a connection only while somebody waits for it. A call that fails fast does not: an
// agent that merely tried again would find a coordinator that has come up after up to 5 s.
void AwaitConnection(grpc::Channel& channel) {
  channel.WaitForConnected(
      std::chrono::system_clock::now() +
      std::chrono::milliseconds(static_cast<int>(CoordinatorStream::kConnectSeconds * 1000)));
}

int64_t RealNs() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

CoordinatorStream::CoordinatorStream(Options options,
                                     std::function<void(v1::CoordinatorMessage)> on_message,
                                     std::function<void(std::string reason)> on_end)
    : options_(std::move(options)),
      on_message_(std::move(on_message)),
      on_end_(std::move(on_end)),
      stub_(v1::AgentService::NewStub(options_.channel)) {
  reader_ = std::thread([this] { Read(); });
}

CoordinatorStream::~CoordinatorStream() {
  outgoing_.Close();
  // What was said last (that this node leaves) is to be read before the end of the stream; then the
  // coordinator ends it.
  const std::chrono::seconds patience{trusted_ ? 5 : 1};
  if (ended_.get_future().wait_for(patience) != std::future_status::ready) context_.TryCancel();
  reader_.join();
}

void CoordinatorStream::Send(v1::AgentMessage message) {
  std::vector<v1::AgentMessage> messages;
  messages.push_back(std::move(message));
  SendAll(std::move(messages));
}

void CoordinatorStream::SendAll(std::vector<v1::AgentMessage> messages) {
  for (v1::AgentMessage& message : messages) {
    if (!message.has_hello()) continue;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_nonce(net::MakeNonce());
    hello.set_time_ns(RealNs());
    std::lock_guard lock(mutex_);
    subject_ = {hello.job_id(), hello.node(), hello.incarnation(),
                hello.nonce(),  "",           hello.time_ns()};
  }
  outgoing_.PostAll(std::move(messages));
}

void CoordinatorStream::Read() {
  if (options_.over_network) AwaitConnection(*options_.channel);
  stream_ = stub_->Attach(&context_);
  writer_ = std::thread([this] { Write(); });
  v1::CoordinatorBatch batch;
  bool good = true;
  while (good && stream_->Read(&batch)) {
    for (auto& message : *batch.mutable_messages()) {
      good = good && Take(std::move(message));
    }
    batch.Clear();
  }
  if (!good) context_.TryCancel();
  outgoing_.Close();
  writer_.join();
  const grpc::Status status = stream_->Finish();
  ended_.set_value();
  on_end_(WhyItEnded(status));
}

void CoordinatorStream::Write() {
  const auto deadline = std::chrono::steady_clock::now() + net::kHandshakeSeconds;
  while (true) {
    auto batch = net::TakeBatch<v1::AgentBatch>(outgoing_,
                                                trusted_ ? std::nullopt : std::optional(deadline));
    if (batch) {
      if (!stream_->Write(*batch)) return;
      continue;
    }
    if (outgoing_.closed()) break;
    if (trusted_) continue;
    timed_out_ = true;
    return context_.TryCancel();
  }
  stream_->WritesDone();
}

bool CoordinatorStream::Take(v1::CoordinatorMessage message) {
  if (trusted_) {
    on_message_(std::move(message));
    return true;
  }
  if (message.has_refusal()) {
    refused_ = true;
    message.mutable_refusal()->set_reason(net::Shown(message.refusal().reason(), 1000));
    on_message_(std::move(message));
    return true;  // the coordinator ends the stream
  }
  if (message.has_challenge() && !challenged_.exchange(true)) return Answer(message.challenge());
  if (message.has_welcome() && challenged_) {
    if (!CheckWelcome(message.welcome())) return false;
    trusted_ = true;
    on_message_(std::move(message));
    return true;
  }
  return Refuse(v1::Refusal::MALFORMED, absl::StrCat(Coordinator(), " does not keep to the order ",
                                                     "of a handshake: ddprun of another version?"));
}

bool CoordinatorStream::Answer(const v1::Challenge& challenge) {
  net::ProofSubject subject;
  {
    std::lock_guard lock(mutex_);
    if (!subject_.job_id.empty() && subject_.job_id != challenge.job_id()) {
      return Refuse(v1::Refusal::JOB,
                    absl::StrCat(Coordinator(), " runs job ", net::Shown(challenge.job_id()),
                                 ", not ", subject_.job_id));
    }
    subject_.job_id = challenge.job_id();
    subject_.coordinator_nonce = challenge.nonce();
    subject = subject_;
  }
  if (challenge.nonce().size() != net::kNonceBytes) {
    return Refuse(v1::Refusal::MALFORMED, absl::StrCat(Coordinator(), " gave no nonce"));
  }
  v1::AgentMessage message;
  v1::Answer* answer = message.mutable_answer();
  answer->set_proof(net::AgentProof(options_.security.secret, subject));
  if (!challenge.shared_file().empty()) {
    absl::StatusOr<std::string> value = net::ReadSharedFile(challenge.shared_file());
    if (value.ok()) {
      answer->set_shared_value(*value);
    } else {
      answer->set_shared_error(std::string(value.status().message()));
    }
  }
  outgoing_.Post(std::move(message));
  return true;
}

bool CoordinatorStream::CheckWelcome(const v1::Welcome& welcome) {
  std::lock_guard lock(mutex_);
  const std::string& secret = options_.security.secret;
  if (net::SameProof(welcome.proof(), net::CoordinatorProof(secret, subject_))) return true;
  return Refuse(v1::Refusal::SECRET,
                absl::StrCat(Coordinator(), " does not know the secret of this job, and is not ",
                             "obeyed: is --coordinator right, and DDPRUN_SECRET the same there?"));
}

bool CoordinatorStream::Refuse(v1::Refusal::Kind kind, std::string reason) {
  refused_ = true;
  v1::CoordinatorMessage message;
  message.mutable_refusal()->set_kind(kind);
  message.mutable_refusal()->set_reason(std::move(reason));
  on_message_(std::move(message));
  return false;
}

std::string CoordinatorStream::Coordinator() const {
  return options_.coordinator.empty() ? "the coordinator"
                                      : absl::StrCat("the coordinator ", options_.coordinator);
}

std::string CoordinatorStream::WhyItEnded(const grpc::Status& status) {
  if (timed_out_) {
    return absl::StrCat(Coordinator(), " did not answer the handshake within ",
                        net::kHandshakeSeconds.count(), " s");
  }
  if (status.ok()) return "the coordinator ended the connection";
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && options_.first && !refused_) {
    Refuse(v1::Refusal::MALFORMED,
           absl::StrCat("what listens at ", options_.coordinator, " is no ddprun coordinator"));
  }
  if (options_.over_network && !challenged_ && !refused_ && !options_.coordinator.empty()) {
    const net::Diagnosis diagnosis = net::Diagnose(options_.coordinator, options_.security);
    if (diagnosis.final && options_.first) Refuse(v1::Refusal::TLS, diagnosis.text);
    if (!diagnosis.text.empty()) return diagnosis.text;
  }
  return absl::StrCat("the connection to the coordinator broke: ",
                      net::Shown(status.error_message()));
}

}  // namespace ddprun::agent
